// Quoted: text from outside, fit for a message.
#ifndef TESSERA_ZERO3_PARAMETERS_QUOTED_H_
#define TESSERA_ZERO3_PARAMETERS_QUOTED_H_

#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tessera::zero3 {

// In quotes, with escapes for what does not print, cut at 60 bytes.
inline std::string Quoted(std::string_view text) {
  constexpr size_t kLongest = 60;
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kLongest)),
                      text.size() > kLongest ? "..." : "", "\"");
}

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_PARAMETERS_QUOTED_H_
