// The known name that a mistyped one most likely meant.
#ifndef TESSERA_BASE_NEAREST_NAME_H_
#define TESSERA_BASE_NEAREST_NAME_H_

#include <span>
#include <string_view>

namespace tessera {

// How many characters must be put in, taken out or replaced, or neighbours
// swapped, to make one text the other, letters' case aside. Texts of more than
// 64 bytes are cut there.
int EditDistance(std::string_view a, std::string_view b);

// The element of `names` nearest to `given`, the first of several. "" if there
// are no names.
std::string_view NearestName(std::string_view given,
                             std::span<const std::string_view> names);

}  // namespace tessera

#endif  // TESSERA_BASE_NEAREST_NAME_H_
