// Quoted, QuotedPath: text of others in a message, cut and made printable.
#ifndef TESSERA_TOOLS_MODEL_FILES_JSON_QUOTED_H_
#define TESSERA_TOOLS_MODEL_FILES_JSON_QUOTED_H_

#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tessera::model_files {

// `text` in quotes; past 100 bytes it ends in "...".
inline std::string Quoted(std::string_view text) {
  constexpr size_t kMost = 100;
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kMost)),
                      text.size() > kMost ? "..." : "", "\"");
}

// A path in quotes; past 1000 bytes its beginning is "...".
inline std::string QuotedPath(std::string_view path) {
  constexpr size_t kMost = 1000;
  if (path.size() <= kMost) {
    return absl::StrCat("\"", absl::CHexEscape(path), "\"");
  }
  return absl::StrCat("\"...",
                      absl::CHexEscape(path.substr(path.size() - kMost)), "\"");
}

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_JSON_QUOTED_H_
