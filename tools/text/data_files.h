// The files of `--data=`: FindDataFiles lists them, and ForEachDocument reads
// the documents of text files. TokenFile (token_file.h) reads files of tokens.
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
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

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

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_DATA_FILES_H_
