// Finds the known name that is closest to a mistyped one.
#ifndef TESSERA_BASE_NEAREST_NAME_H_
#define TESSERA_BASE_NEAREST_NAME_H_

#include <span>
#include <string_view>

namespace tessera {

// The number of insertions, deletions, replacements and swaps of adjacent
// characters that turn one text into the other, ignoring case. Texts are
// truncated to 64 bytes.
int EditDistance(std::string_view a, std::string_view b);

// The element of `names` nearest to `given`; the first one if several are
// equally near. Returns "" if `names` is empty.
std::string_view NearestName(std::string_view given,
                             std::span<const std::string_view> names);

}  // namespace tessera

#endif  // TESSERA_BASE_NEAREST_NAME_H_
