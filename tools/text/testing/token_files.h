// WriteTokenFile: writes the token files of tests.
#ifndef TESSERA_TOOLS_TEXT_TESTING_TOKEN_FILES_H_
#define TESSERA_TOOLS_TEXT_TESTING_TOKEN_FILES_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/quoted.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

// Replaces the file atomically. InvalidArgument if its name is not *.u16, *.bin
// or *.u32, or an id does not fit the type.
inline absl::Status WriteTokenFile(const std::string& path,
                                   std::span<const TokenId> tokens) {
  const bool is_narrow =
      absl::EndsWith(path, ".u16") || absl::EndsWith(path, ".bin");
  if (!is_narrow && !absl::EndsWith(path, ".u32")) {
    return absl::InvalidArgumentError(absl::StrCat(
        QuotedPath(path),
        " is not a token file; such files are named *.u16, *.bin or *.u32"));
  }
  const int64_t width = is_narrow ? 2 : 4;
  std::string bytes;
  bytes.reserve(tokens.size() * static_cast<size_t>(width));
  for (const TokenId id : tokens) {
    if (id < 0 || (width == 2 && id >= 1 << 16)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token file ", QuotedPath(path), ": id ", id,
                       " does not fit ", width, " bytes"));
    }
    // Little-endian: the low bytes come first.
    bytes.append(reinterpret_cast<const char*>(&id),
                 static_cast<size_t>(width));
  }
  return WriteFile(path, bytes);
}

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_TESTING_TOKEN_FILES_H_
