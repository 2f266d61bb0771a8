#include "tools/text/added_tokens.h"

#include <algorithm>
#include <utility>

namespace tessera::text {
namespace {

unsigned char FirstByte(const AddedToken& token) {
  return static_cast<unsigned char>(token.content[0]);
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) {
                     if (FirstByte(a) != FirstByte(b)) {
                       return FirstByte(a) < FirstByte(b);
                     }
                     return a.content.size() > b.content.size();
                   });
  for (const AddedToken& token : tokens_) ++first_of_[FirstByte(token) + 1u];
  for (size_t i = 1; i < first_of_.size(); ++i) {
    first_of_[i] += first_of_[i - 1];
  }
}

AddedTokens::Match AddedTokens::Find(std::string_view text, size_t begin,
                                     bool with_special) const {
  if (tokens_.empty()) return {text.size(), nullptr};
  for (size_t at = begin; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    for (uint32_t i = first_of_[byte]; i < first_of_[byte + 1u]; ++i) {
      const AddedToken& token = tokens_[i];
      if (token.special && !with_special) continue;
      if (text.substr(at, token.content.size()) == token.content) {
        return {at, &token};
      }
    }
  }
  return {text.size(), nullptr};
}

}  // namespace tessera::text
