// The files of `--data=`: FindDataFiles lists them, ForEachDocument reads the
// documents of text files, and TokenFile reads files of tokens.
//
//   TESSERA_ASSIGN_OR_RETURN(std::vector<DataFile> files,
//                            FindDataFiles({{"docs", "src/*.cc", "a.u16"}}));
//
// A path is a directory or a file if one of that name exists, otherwise a
// glob(7) pattern. Files are in the order of the paths; the files of a
// directory or a pattern are sorted by name, byte by byte. Duplicates are
// dropped.
//
//   kind        files                        content
//   kU16        *.u16; *.bin without *.idx   tokens, 16-bit little-endian
//   kU32        *.u32                        tokens, 32-bit little-endian
//   kIndexed    *.idx, and its *.bin         tokens (indexed_dataset.h)
//   kNpy        *.npy                        tokens, an array of NumPy
//   kJsonLines  *.jsonl                      documents, an object a line
//   kText       all others                   one document
//
// Directories are searched recursively without following symbolic links. In
// directories, names that begin with a dot, empty files, token files and binary
// files (those with a zero byte among the first 8000) are skipped; in patterns,
// empty and binary files are skipped. An explicitly named file that is empty or
// binary is an error.
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

// True for kinds that a tokenizer must encode.
constexpr bool IsText(DataKind kind) {
  return kind == DataKind::kText || kind == DataKind::kJsonLines;
}

struct DataFile {
  std::string path;  // The *.bin for an indexed data set.
  DataKind kind = DataKind::kText;

  friend bool operator==(const DataFile&, const DataFile&) = default;
};

// Determines the kind by name; for *.bin also by the existence of the *.idx.
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

// A document of a text file. Training learns to continue the prompt, which may
// be empty, with the text; it does not learn the prompt itself.
struct Document {
  std::string_view prompt = {};
  std::string_view text = {};
};

// Calls `add` with each document of a text file, in file order. A line of a
// *.jsonl is an object with either the string "text" or the strings "prompt"
// and "completion"; other keys are ignored. Blank lines are skipped.
// InvalidArgument, with the file and the line, if a text or a line is too long,
// a line is not such an object, or it has both "text" and "completion";
// otherwise the system's error or the error of `add`.
absl::Status ForEachDocument(
    const DataFile& file, absl::FunctionRef<absl::Status(const Document&)> add);

// Reads a file of tokens: consecutive little-endian integers, which have 1 to 8
// bytes in indexed data sets and in NumPy arrays (format versions 1 to 3, one
// dimension).
//
//   TESSERA_ASSIGN_OR_RETURN(auto file, TokenFile::Open("train.u16", 50257));
//   TESSERA_RETURN_IF_ERROR(file.Read(1000, tokens));
class TokenFile {
 public:
  // Reads only the file size and, if there is one, the index or the NumPy
  // header. InvalidArgument if the file is empty, is a text file, does not
  // contain a whole number of tokens, or contradicts its index or header;
  // Unimplemented if its elements are not integers; otherwise the system's
  // error.
  static absl::StatusOr<TokenFile> Open(const std::string& path,
                                        int64_t vocabulary);

  int64_t token_count() const { return token_count_; }
  // The tokens of prompts; always empty unless the file is an indexed data set.
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

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_DATA_FILES_H_
