// Quoted, QuotedPath: make external text printable and short for messages.
//
//   absl::StrCat("no such key ", Quoted(key));   // no such key "lay\\x01er"
#ifndef TESSERA_BASE_QUOTED_H_
#define TESSERA_BASE_QUOTED_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tessera {

// `text` in quotes, with escapes for unprintable characters; truncated with
// "..." after 100 bytes.
inline std::string Quoted(std::string_view text) {
  constexpr size_t kMost = 100;
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kMost)),
                      text.size() > kMost ? "..." : "", "\"");
}

// A path in quotes. Of a path of more than 1000 bytes only the last 1000 are
// kept, after "...".
inline std::string QuotedPath(std::string_view path) {
  constexpr size_t kMost = 1000;
  if (path.size() <= kMost) {
    return absl::StrCat("\"", absl::CHexEscape(path), "\"");
  }
  return absl::StrCat("\"...",
                      absl::CHexEscape(path.substr(path.size() - kMost)), "\"");
}

}  // namespace tessera

#endif  // TESSERA_BASE_QUOTED_H_
