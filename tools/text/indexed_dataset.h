// Indexed data sets of Megatron-LM: the tokens of many documents in PREFIX.bin,
// and where each begins in PREFIX.idx.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto writer, IndexedDatasetWriter::Create("data/books", 50257));
//   TESSERA_RETURN_IF_ERROR(writer.AddDocument(ids));
//   TESSERA_RETURN_IF_ERROR(writer.Finish());
//   TESSERA_ASSIGN_OR_RETURN(IndexedTokens tokens,
//                            ReadTokenIndex("data/books.idx"));
//
// PREFIX.idx, little-endian, for n sequences and d documents:
//
//   bytes       content
//   9           "MMIDIDX" and two zero bytes
//   8           version, 1
//   1           type: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 6 f64, 7 f32, 8 u16
//   8, 8        n, d + 1
//   4 n         tokens of each sequence, i32
//   8 n         its first byte in PREFIX.bin, i64
//   8 (d + 1)   the first sequence of each document, and n, i64
//   n or none   the mode of each sequence, i8: 0, or 1 for a prompt
//
// Megatron-LM has modes in multimodal data sets. Here a document with a prompt
// is two sequences, the prompt's and the rest; a data set without prompts has
// no modes.
//
// Source: megatron/core/datasets/indexed_dataset.py of Megatron-LM.
#ifndef TESSERA_TOOLS_TEXT_INDEXED_DATASET_H_
#define TESSERA_TOOLS_TEXT_INDEXED_DATASET_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/atomic_file.h"
#include "tools/text/token_ranges.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

// How a token lies in a file, little-endian.
enum class TokenType { kU8, kI8, kI16, kU16, kI32, kU32, kI64 };

// 1 to 8.
int64_t BytesOf(TokenType type);

// What an index says of its PREFIX.bin.
struct IndexedTokens {
  TokenType type = TokenType::kI32;
  int64_t tokens = 0;
  int64_t sequences = 0;
  int64_t documents = 0;
  TokenRanges prompts = {};  // The sequences of mode 1.

  friend bool operator==(const IndexedTokens&, const IndexedTokens&) = default;
};

// "data/books" of "data/books.idx" or "data/books.bin".
std::string_view PrefixOf(std::string_view path);

// Reads the index `path` in parts, so that it may be larger than memory, and
// checks all of it. Untrusted: InvalidArgument, with the path and the place,
// unless the sizes are those of the file, lengths are not negative, sequences
// follow each other without gaps, documents ascend from 0 to n, and modes are 0
// or 1; Unimplemented for numbers that are no integers; otherwise the system's
// error.
absl::StatusOr<IndexedTokens> ReadTokenIndex(const std::string& path);

// Writes a data set with one sequence a document, two if it has a prompt. One
// thread at a time.
class IndexedDatasetWriter {
 public:
  // Tokens take 2 bytes if the vocabulary has fewer than 65500, else 4, as
  // Megatron-LM has it. InvalidArgument if the vocabulary is below 1 or above
  // 2^31 - 1; otherwise the system's error.
  static absl::StatusOr<IndexedDatasetWriter> Create(const std::string& prefix,
                                                     int64_t vocabulary);

  int64_t documents() const { return documents_; }
  int64_t tokens() const { return tokens_; }

  // May be empty. The first `prompt` tokens are a prompt's. InvalidArgument,
  // without side effects, if an id is not in the vocabulary, there are more
  // than 2^31 - 1, or fewer than `prompt`.
  absl::Status AddDocument(std::span<const TokenId> ids, int64_t prompt = 0);

  // Replaces both files, PREFIX.idx last. Call it once, last; without it
  // nothing is left.
  absl::Status Finish();

 private:
  IndexedDatasetWriter(std::string prefix, int64_t vocabulary, AtomicFile bin)
      : prefix_(std::move(prefix)),
        vocabulary_(vocabulary),
        bin_(std::move(bin)) {}

  TokenType type() const;
  absl::Status Flush();

  std::string prefix_;
  int64_t vocabulary_;
  AtomicFile bin_;
  std::string buffer_;  // The end of PREFIX.bin.
  int64_t written_ = 0;
  int64_t tokens_ = 0;
  int64_t documents_ = 0;
  // Of sequences. A prompt's is followed by that of the rest of its document.
  std::vector<int32_t> lengths_;
  std::vector<int8_t> modes_;
  bool has_prompts_ = false;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_INDEXED_DATASET_H_
