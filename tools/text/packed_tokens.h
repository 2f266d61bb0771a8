// PackedTokens: token ids in 2 or 4 bytes each.
#ifndef TESSERA_TOOLS_TEXT_PACKED_TOKENS_H_
#define TESSERA_TOOLS_TEXT_PACKED_TOKENS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tools/text/tokenizer.h"

namespace tessera::text {

class PackedTokens {
 public:
  // Ids are in [0, vocabulary).
  explicit PackedTokens(int64_t vocabulary) : narrow_(vocabulary <= 65536) {}

  int64_t size() const {
    return static_cast<int64_t>(narrow_ ? small_.size() : large_.size());
  }

  int64_t bytes() const {
    return size() *
           static_cast<int64_t>(narrow_ ? sizeof(uint16_t) : sizeof(TokenId));
  }

  void Append(std::span<const TokenId> ids) {
    if (narrow_) {
      small_.insert(small_.end(), ids.begin(), ids.end());
    } else {
      large_.insert(large_.end(), ids.begin(), ids.end());
    }
  }

  // The ids from `begin` on, which are so many.
  void Read(int64_t begin, std::span<TokenId> ids) const {
    const auto count = static_cast<std::ptrdiff_t>(ids.size());
    if (narrow_) {
      std::copy_n(small_.begin() + begin, count, ids.begin());
    } else {
      std::copy_n(large_.begin() + begin, count, ids.begin());
    }
  }

 private:
  bool narrow_;
  std::vector<uint16_t> small_;
  std::vector<TokenId> large_;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_PACKED_TOKENS_H_
