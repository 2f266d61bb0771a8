// Tokenizer, the interface that converts text to token ids and back, and
// ByteTokenizer, whose tokens are bytes.
//
//   ByteTokenizer tokenizer;
//   std::vector<TokenId> ids = tokenizer.Encode("a dog");
//   std::string text = tokenizer.Decode(ids);  // "a dog"
//
// LoadTokenizer in load_tokenizer.h loads the tokenizer of a model.
#ifndef TESSERA_TOOLS_TEXT_TOKENIZER_H_
#define TESSERA_TOOLS_TEXT_TOKENIZER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::text {

using TokenId = int32_t;

// Determines how a special token that is written out in a text, such as
// "<|endoftext|>", is encoded: as the token, which is the behaviour of the
// tokenizers package, or as its characters, which is safe for untrusted texts.
enum class SpecialTokens { kRecognised, kAsText };

// Determines which documents contain special tokens (kRecognised): prompts and
// completions, to which the template of a chat may have been applied, all
// documents, or none.
enum class SpecialTokenPolicy { kPairs, kAll, kNone };

// Const calls are thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Tokenizers with the same nonzero fingerprint encode all texts and pairs
  // equally. LoadTokenizer sets it and the policy.
  uint64_t fingerprint() const { return fingerprint_; }
  void set_fingerprint(uint64_t fingerprint) { fingerprint_ = fingerprint; }

  void set_special_tokens(SpecialTokenPolicy policy) { policy_ = policy; }
  // The encoding of special tokens in texts, and in prompts and completions.
  SpecialTokens SpecialTokensOfTexts() const {
    return policy_ == SpecialTokenPolicy::kAll ? SpecialTokens::kRecognised
                                               : SpecialTokens::kAsText;
  }
  SpecialTokens SpecialTokensOfPairs() const {
    return policy_ == SpecialTokenPolicy::kNone ? SpecialTokens::kAsText
                                                : SpecialTokens::kRecognised;
  }

  // Every id is in [0, vocabulary_size()); some of these ids may be unused.
  virtual int64_t vocabulary_size() const = 0;

  // The tokens that the model expects before a text, such as its begin of text.
  // Encode and AppendTokens do not add them. LoadTokenizer sets them.
  const std::vector<TokenId>& begin_of_text() const { return begin_of_text_; }
  void set_begin_of_text(std::vector<TokenId> ids) {
    begin_of_text_ = std::move(ids);
  }

  // The token that ends a document, if there is one.
  virtual std::optional<TokenId> end_of_text() const = 0;

  // Appends the tokens of `text`, which may contain any bytes; each byte that
  // is not valid UTF-8 is treated as one character.
  virtual void AppendTokens(std::string_view text, SpecialTokens special,
                            std::vector<TokenId>& ids) const = 0;

  // Appends the bytes of `ids`, which continue `text`, and ignores unknown ids.
  // The bytes of a part of a text need not be valid UTF-8.
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

 private:
  uint64_t fingerprint_ = 0;
  SpecialTokenPolicy policy_ = SpecialTokenPolicy::kPairs;
  std::vector<TokenId> begin_of_text_ = {};
};

// Ids 0 to 255 are the bytes of a text; 256 ends a document and has no text.
// Decoding restores any bytes exactly.
class ByteTokenizer : public Tokenizer {
 public:
  static constexpr TokenId kEndOfText = 256;

  int64_t vocabulary_size() const override { return kEndOfText + 1; }
  std::optional<TokenId> end_of_text() const override { return kEndOfText; }

  void AppendTokens(std::string_view text, SpecialTokens /*special*/,
                    std::vector<TokenId>& ids) const override {
    ids.reserve(ids.size() + text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }

  void AppendText(std::span<const TokenId> ids,
                  std::string& text) const override {
    for (const TokenId id : ids) {
      if (id >= 0 && id < kEndOfText) text += static_cast<char>(id);
    }
  }
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_TOKENIZER_H_
