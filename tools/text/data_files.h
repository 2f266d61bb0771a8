// Which files `--data=` means.
//
//   TESSERA_ASSIGN_OR_RETURN(std::vector<DataFile> files,
//                            FindDataFiles({{"docs", "src/*.cc", "a.u16"}}));
//
// A path is taken as a directory or a file where there is one of that name,
// else as a pattern of glob(7). The order is that of the paths; within a
// directory or a pattern, that of the files' names, byte by byte. A file that
// comes again is taken once.
//
//   kind        which files                  what they hold
//   kU16        *.u16, *.bin                 tokens, 16-bit little-endian
//   kU32        *.u32                        tokens, 32-bit little-endian
//   kText       all others                   one document
//
// Directories are searched through, but not those behind symbolic links. From
// directories, passed over are: names that begin with a dot, empty files, token
// files, and binary files, which have a zero byte among their first 8000 bytes.
// From patterns: empty and binary files. What is named itself is not passed
// over: an empty or binary file is an error.
#ifndef TESSERA_TOOLS_TEXT_DATA_FILES_H_
#define TESSERA_TOOLS_TEXT_DATA_FILES_H_

#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::text {

enum class DataKind { kText, kU16, kU32 };

struct DataFile {
  std::string path;
  DataKind kind = DataKind::kText;

  friend bool operator==(const DataFile&, const DataFile&) = default;
};

DataKind KindOf(std::string_view path);

// At least one file. NotFound where there is no file of a name or pattern,
// InvalidArgument where a named file is empty, binary or no regular file, or
// nothing is left of a path or `paths` is empty; else what the system says. The
// message names the path.
absl::StatusOr<std::vector<DataFile>> FindDataFiles(
    std::span<const std::string> paths);

std::ostream& operator<<(std::ostream& os, const DataFile& file);

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_DATA_FILES_H_
