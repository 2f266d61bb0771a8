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
//   kJsonLines  *.jsonl, *.jsonlines,        documents, an object a line
//               *.ndjson, *.jl in any case;
//               others by their content
//   kText       all others                   one document
//
// The content is JSON lines if the first line that is not blank begins with an
// object that has one of the fields of ForEachDocument, or if the file begins
// with an array of such objects, which ForEachDocument rejects.
//
// Directories are searched recursively. Links to directories are followed;
// each directory is searched once, so that links may form loops. In
// directories, names that begin with a dot, empty files, token files and binary
// files (those with a zero byte among the first 8000) are skipped; in patterns,
// empty and binary files are skipped. An explicitly named file that is empty or
// binary is an error. Compressed text of gzip and zstd is decompressed if it is
// named explicitly or, like *.jsonl.gz, after JSON; that of other programs is
// an error there, and skipped elsewhere.
#ifndef TESSERA_TOOLS_TEXT_DATA_FILES_H_
#define TESSERA_TOOLS_TEXT_DATA_FILES_H_

#include <cstdint>
#include <limits>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

// Determines the kind by name; for *.bin also by the existence of the *.idx,
// and for names without a known ending by the beginning of the file.
DataKind KindOf(std::string_view path);

// True if the path names a file or a directory, or is a pattern with matches.
bool NamesData(const std::string& path);

// Joins the parts of a list that was split at commas, because names may contain
// commas: returns the shortest names for each of which `names_data` is true, or
// the unchanged parts if there are none.
std::vector<std::string> JoinNames(
    std::span<const std::string> parts,
    absl::FunctionRef<bool(const std::string&)> names_data);

// Returns at least one file. NotFound if a name or pattern has no file;
// InvalidArgument if a named file is empty, binary or not regular, if a path
// has no usable file, or if `paths` is empty; otherwise the system's error. The
// message names the path.
absl::StatusOr<std::vector<DataFile>> FindDataFiles(
    std::span<const std::string> paths);

std::ostream& operator<<(std::ostream& os, const DataFile& file);

// The largest text file; convert larger ones to token files first.
inline constexpr int64_t kMaxTextBytes = int64_t{1} << 31;
// The longest line of JSON lines, whose file may have any size.
inline constexpr int64_t kMaxLineBytes = int64_t{1} << 30;

// A document of a data file: text, a prompt with its completion, or tokens.
struct Document {
  // Training learns to continue the prompt, which may be empty, with the text;
  // it does not learn the prompt itself.
  std::string_view prompt = {};
  std::string_view text = {};
  // True for a prompt and its completion, false for a text.
  bool is_pair = false;
  // If not empty, the document has these tokens and no text. Training does not
  // learn those in the masked ranges, which are ascending and disjoint.
  std::span<const TokenId> ids = {};
  std::span<const TokenRange> masked = {};
};

struct DocumentOptions {
  // The ids of documents of tokens are below it.
  int64_t vocabulary = std::numeric_limits<TokenId>::max();
  // The number of invalid lines that may be skipped; each skipped line reduces
  // it. Null: none.
  int64_t* bad_lines = nullptr;
};

// Calls `add` with each document of a text file, in file order. A line of JSON
// lines is an object, read as by Python (JsonDialect::kPython), with
//
//   "input_ids": an array of ids, as Hugging Face's tokenizers return it;
//     "labels", if present, has the same ids, or -100 where training does not
//     learn the token; "attention_mask", if present, has ones for the ids
//     and zeros for padding before or after them, which is dropped. Lines
//     without ids are skipped;
//   otherwise the string "text";
//   otherwise the strings "prompt" and "completion".
//
// Other keys are ignored. Blank lines and a byte order mark are skipped.
// InvalidArgument, with the file and the line, if a text or a line is too long,
// a line is not such an object, or it has both "text" and "completion";
// otherwise the system's error or the error of `add`.
absl::Status ForEachDocument(
    const DataFile& file, absl::FunctionRef<absl::Status(const Document&)> add,
    const DocumentOptions& options = {});

// Two documents with the same prompt, of which the first is preferred.
struct Preference {
  Document chosen = {};
  Document rejected = {};
};

// Calls `add` with each pair of JSON lines, in file order. A line is an object
// with the strings "prompt", "chosen" and "rejected", or with the arrays of ids
// "prompt_ids", "chosen_ids" and "rejected_ids", as TRL tokenizes them. Other
// keys are ignored, blank lines are skipped. The documents are valid during the
// call. InvalidArgument, with the file and the line, if a line is not such an
// object, an id is not below `vocabulary`, or `add` returns an error.
absl::Status ForEachPreference(
    const DataFile& file,
    absl::FunctionRef<absl::Status(const Preference&)> add, int64_t vocabulary);

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_DATA_FILES_H_
