// ByteTokenizer: the bytes of a text, and a token for its end.
//
// Ids 0 to 255 are the bytes, 256 ends a document and is no text. Any bytes
// decode to what was encoded.
#ifndef TESSERA_TOOLS_TEXT_BYTE_TOKENIZER_H_
#define TESSERA_TOOLS_TEXT_BYTE_TOKENIZER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/text/tokenizer.h"

namespace tessera::text {

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

#endif  // TESSERA_TOOLS_TEXT_BYTE_TOKENIZER_H_
