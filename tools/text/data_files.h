// FindDataFiles: the files of `--data=`; TokenFile: tokens on disk.
//
//   TESSERA_ASSIGN_OR_RETURN(std::vector<DataFile> files,
//                            FindDataFiles({{"docs", "src/*.cc", "a.u16"}}));
//
// A path is a directory or a file if one of that name exists, otherwise a
// pattern of glob(7). The order is that of the paths; within a directory or a
// pattern, that of the names, byte by byte. Duplicates are dropped.
//
//   kind        files                        content
//   kU16        *.u16, *.bin                 tokens, 16-bit little-endian
//   kU32        *.u32                        tokens, 32-bit little-endian
//   kText       all others                   one document
//
// Directories are searched recursively, except behind symbolic links. In
// directories, names that begin with a dot, empty files, token files and binary
// files (with a zero byte among the first 8000) are skipped; in patterns, empty
// and binary files. An empty or binary file that is named itself is an error.
#ifndef TESSERA_TOOLS_TEXT_DATA_FILES_H_
#define TESSERA_TOOLS_TEXT_DATA_FILES_H_

#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

enum class DataKind { kText, kU16, kU32 };

struct DataFile {
  std::string path;
  DataKind kind = DataKind::kText;

  friend bool operator==(const DataFile&, const DataFile&) = default;
};

DataKind KindOf(std::string_view path);

// Returns at least one file. NotFound if a name or pattern has no file;
// InvalidArgument if a named file is empty, binary or not regular, if a path
// has no usable file, or if `paths` is empty; otherwise the system's error. The
// message names the path.
absl::StatusOr<std::vector<DataFile>> FindDataFiles(
    std::span<const std::string> paths);

std::ostream& operator<<(std::ostream& os, const DataFile& file);

// Tokens of 16 or 32 bits each, little-endian, without a header.
//
//   TESSERA_RETURN_IF_ERROR(WriteTokenFile("train.u16", ids));
//   TESSERA_ASSIGN_OR_RETURN(auto file, TokenFile::Open("train.u16", 50257));
//   TESSERA_RETURN_IF_ERROR(file.Read(1000, tokens));
class TokenFile {
 public:
  // The width is that of KindOf(path). Reads only the size. InvalidArgument if
  // the file is empty, has no whole number of tokens, or has another extension;
  // otherwise the system's error.
  static absl::StatusOr<TokenFile> Open(const std::string& path,
                                        int64_t vocabulary);

  int64_t token_count() const { return token_count_; }

  // Reads the tokens [begin, begin + tokens.size()) through the system's page
  // cache, which the ranks of a host share. OutOfRange past the end,
  // InvalidArgument with the position for an id outside of the vocabulary,
  // DataLoss if the file has become shorter. Thread-safe.
  absl::Status Read(int64_t begin, std::span<TokenId> tokens) const;

 private:
  TokenFile(std::string path, UniqueFd fd, int64_t width, int64_t vocabulary,
            int64_t token_count)
      : path_(std::move(path)),
        fd_(std::move(fd)),
        width_(width),
        vocabulary_(vocabulary),
        token_count_(token_count) {}

  std::string path_;
  UniqueFd fd_;
  int64_t width_;  // Bytes.
  int64_t vocabulary_;
  int64_t token_count_;
};

// Replaces the file as a whole. The width is that of KindOf(path).
// InvalidArgument if the name is not that of a token file or an id does not
// fit.
absl::Status WriteTokenFile(const std::string& path,
                            std::span<const TokenId> tokens);

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_DATA_FILES_H_
