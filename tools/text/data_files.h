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
//   kU16        *.u16; *.bin without *.idx   tokens, 16-bit little-endian
//   kU32        *.u32                        tokens, 32-bit little-endian
//   kIndexed    *.idx, and its *.bin         tokens (indexed_dataset.h)
//   kNpy        *.npy                        tokens, an array of NumPy
//   kJsonLines  *.jsonl                      documents, an object a line
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

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "tools/text/indexed_dataset.h"
#include "tools/text/token_ranges.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

enum class DataKind { kText, kJsonLines, kU16, kU32, kIndexed, kNpy };

// Text, of which a tokenizer makes tokens.
constexpr bool IsText(DataKind kind) {
  return kind == DataKind::kText || kind == DataKind::kJsonLines;
}

struct DataFile {
  std::string path;  // Of an indexed data set, the *.bin.
  DataKind kind = DataKind::kText;

  friend bool operator==(const DataFile&, const DataFile&) = default;
};

// By the name; for *.bin also by whether there is a *.idx beside it.
DataKind KindOf(std::string_view path);

// Returns at least one file. NotFound if a name or pattern has no file;
// InvalidArgument if a named file is empty, binary or not regular, if a path
// has no usable file, or if `paths` is empty; otherwise the system's error. The
// message names the path.
absl::StatusOr<std::vector<DataFile>> FindDataFiles(
    std::span<const std::string> paths);

std::ostream& operator<<(std::ostream& os, const DataFile& file);

// The largest text file; convert larger ones to token files first.
inline constexpr int64_t kMaxTextBytes = int64_t{1} << 31;
// The longest line of a *.jsonl, whose size has no limit.
inline constexpr int64_t kMaxLineBytes = int64_t{1} << 26;

// A document of a file of text. Training learns to continue the prompt, which
// may be empty, by the text, and not the prompt itself.
struct Document {
  std::string_view prompt = {};
  std::string_view text = {};
};

// Calls `add` with each document of a file of text, in its order. A line of a
// *.jsonl is an object with a string "text", which is the document, or with the
// strings "prompt" and "completion"; it may have other keys. Blank lines are
// skipped. InvalidArgument, with the file and the line, if a text or a line is
// too long, or a line is no such object or has both "text" and "completion";
// otherwise the system's error, or that of `add`.
absl::Status ForEachDocument(
    const DataFile& file, absl::FunctionRef<absl::Status(const Document&)> add);

// Integers one after another, little-endian, in a file of any kind but text: of
// 1 to 8 bytes in indexed data sets and in arrays of NumPy (format versions 1
// to 3, one dimension).
//
//   TESSERA_RETURN_IF_ERROR(WriteTokenFile("train.u16", ids));
//   TESSERA_ASSIGN_OR_RETURN(auto file, TokenFile::Open("train.u16", 50257));
//   TESSERA_RETURN_IF_ERROR(file.Read(1000, tokens));
class TokenFile {
 public:
  // Reads only the size, and the index or the header of NumPy. InvalidArgument
  // if the file is empty, has no whole number of tokens or not as many as its
  // index or header says, or is of text; Unimplemented for other numbers than
  // integers; otherwise the system's error.
  static absl::StatusOr<TokenFile> Open(const std::string& path,
                                        int64_t vocabulary);

  int64_t token_count() const { return token_count_; }
  // The tokens of prompts, which only an indexed data set may have.
  const TokenRanges& prompts() const { return prompts_; }

  // Reads the tokens [begin, begin + tokens.size()) through the system's page
  // cache, which the ranks of a host share. OutOfRange past the end,
  // InvalidArgument with the position for an id outside of the vocabulary,
  // DataLoss if the file has become shorter. Thread-safe.
  absl::Status Read(int64_t begin, std::span<TokenId> tokens) const;

 private:
  TokenFile(std::string path, UniqueFd fd, int64_t offset, TokenType type,
            int64_t vocabulary, int64_t token_count, TokenRanges prompts)
      : path_(std::move(path)),
        fd_(std::move(fd)),
        offset_(offset),
        type_(type),
        vocabulary_(vocabulary),
        token_count_(token_count),
        prompts_(std::move(prompts)) {}

  std::string path_;
  UniqueFd fd_;
  int64_t offset_;  // Bytes before the first token.
  TokenType type_;
  int64_t vocabulary_;
  int64_t token_count_;
  TokenRanges prompts_;
};

// Replaces the file as a whole. InvalidArgument if it is not named *.u16, *.bin
// or *.u32, or an id does not fit.
absl::Status WriteTokenFile(const std::string& path,
                            std::span<const TokenId> tokens);

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_DATA_FILES_H_
