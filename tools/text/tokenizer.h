// Tokenizer: text to token ids and back.
//
//   ByteTokenizer tokenizer;                      // byte_tokenizer.h
//   std::vector<TokenId> ids = tokenizer.Encode("a dog");
//   std::string text = tokenizer.Decode(ids);     // "a dog"
//
// bpe_tokenizer.h reads those of Hugging Face.
#ifndef TESSERA_TOOLS_TEXT_TOKENIZER_H_
#define TESSERA_TOOLS_TEXT_TOKENIZER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

using TokenId = int32_t;

// What the text "<|endoftext|>" becomes, where that is a special token: the
// token, as the tokenizers package has it, or the characters it is written
// with, as is right for texts of others.
enum class SpecialTokens { kRecognised, kAsText };

// Const calls may be made by several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Every id is in [0, vocabulary_size()); some of these may be unused.
  virtual int64_t vocabulary_size() const = 0;

  // The token that ends a document; none where there is no such token.
  virtual std::optional<TokenId> end_of_text() const = 0;

  // Appends the tokens of `text`, which may be any bytes; where it is not UTF-8
  // each wrong byte counts as a character.
  virtual void AppendTokens(std::string_view text, SpecialTokens special,
                            std::vector<TokenId>& ids) const = 0;

  // Appends the bytes of `ids`; nothing for an id that is none. The bytes of a
  // part of a text need not be UTF-8.
  virtual void AppendText(std::span<const TokenId> ids,
                          std::string& text) const = 0;

  std::vector<TokenId> Encode(
      std::string_view text,
      SpecialTokens special = SpecialTokens::kAsText) const {
    std::vector<TokenId> ids;
    AppendTokens(text, special, ids);
    return ids;
  }
  std::string Decode(std::span<const TokenId> ids) const {
    std::string text;
    AppendText(ids, text);
    return text;
  }
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_TOKENIZER_H_
