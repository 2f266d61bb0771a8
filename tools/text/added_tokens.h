// AddedTokens: tokens that are found in the text as they are, before any
// splitting and merging.
#ifndef TESSERA_TOOLS_TEXT_ADDED_TOKENS_H_
#define TESSERA_TOOLS_TEXT_ADDED_TOKENS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/text/tokenizer.h"

namespace tessera::text {

struct AddedToken {
  TokenId id = 0;
  std::string content = {};  // Not empty.
  bool special = false;
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  struct Match {
    size_t begin = 0;
    const AddedToken* token = nullptr;  // Null: none.
  };

  // The leftmost token in `text` from byte `begin` on, the longest of those
  // that begin there; special ones only where `with_special`.
  Match Find(std::string_view text, size_t begin, bool with_special) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  // By first byte; longer ones come first.
  std::vector<AddedToken> tokens_;
  // Of those that begin with a byte, the first; one more for the end.
  std::array<uint32_t, 257> first_of_ = {};
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_ADDED_TOKENS_H_
