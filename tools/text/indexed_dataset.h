// Megatron-LM's indexed data sets: PREFIX.bin contains the tokens of many
// documents, and PREFIX.idx the position of each.
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
//   4 n         number of tokens of each sequence, i32
//   8 n         first byte of each sequence in PREFIX.bin, i64
//   8 (d + 1)   first sequence of each document, then n, i64
//   n or 0      mode of each sequence, i8: 0, or 1 for a prompt; optional
//
// Megatron-LM uses modes in multimodal data sets. Here a document with prompts
// consists of several sequences, of mode 1 for a prompt and 0 between; a data
// set without prompts has no modes.
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

// The type of a token in a file, little-endian.
enum class TokenType { kU8, kI8, kI16, kU16, kI32, kU32, kI64 };

// 1 to 8.
int64_t BytesOf(TokenType type);

// The content of PREFIX.bin as its index describes it.
struct IndexedTokens {
  TokenType type = TokenType::kI32;
  int64_t tokens = 0;
  int64_t sequences = 0;
  int64_t documents = 0;
  TokenRanges prompts = {};  // The sequences of mode 1.

  friend bool operator==(const IndexedTokens&, const IndexedTokens&) = default;
};

// Returns "data/books" for "data/books.idx" or "data/books.bin".
std::string_view PrefixOf(std::string_view path);

// Reads the index `path` in parts, so that it may be larger than memory, and
// checks all of it, because the file is untrusted. InvalidArgument, with the
// path and the position, unless the counts match the file size, lengths are not
// negative, sequences are contiguous, documents ascend from 0 to n, and modes
// are 0 or 1; Unimplemented if the tokens are not integers; otherwise the
// system's error.
absl::StatusOr<IndexedTokens> ReadTokenIndex(const std::string& path);

// Writes a data set with one sequence per document, or several if the document
// has prompts. Not thread-safe.
class IndexedDatasetWriter {
 public:
  // As in Megatron-LM, a token has 2 bytes if the vocabulary has fewer than
  // 65500 entries, otherwise 4. InvalidArgument if the vocabulary is below 1 or
  // above 2^31 - 1; otherwise the system's error.
  static absl::StatusOr<IndexedDatasetWriter> Create(const std::string& prefix,
                                                     int64_t vocabulary);

  int64_t documents() const { return static_cast<int64_t>(ends_.size()); }
  int64_t tokens() const { return tokens_; }

  // Adds a document, which may be empty. `prompts` are ranges of its tokens,
  // ascending and disjoint. InvalidArgument, without side effects, if an id is
  // not in the vocabulary, if there are more than 2^31 - 1 tokens, or if the
  // ranges are not of that kind.
  absl::Status AddDocument(std::span<const TokenId> ids,
                           std::span<const TokenRange> prompts = {});

  // Replaces both files, PREFIX.idx last. Must be the last call. Without it no
  // file is written.
  absl::Status Finish();

 private:
  IndexedDatasetWriter(std::string prefix, int64_t vocabulary, AtomicFile bin)
      : prefix_(std::move(prefix)),
        vocabulary_(vocabulary),
        bin_(std::move(bin)) {}

  TokenType type() const;
  void AddSequence(int64_t length, bool is_prompt);
  absl::Status Flush();

  std::string prefix_;
  int64_t vocabulary_;
  AtomicFile bin_;
  std::string buffer_;  // Not yet written.
  int64_t written_ = 0;
  int64_t tokens_ = 0;
  std::vector<int64_t> ends_;  // The sequences up to the end of each document.
  // For each sequence, in order.
  std::vector<int32_t> lengths_;
  std::vector<int8_t> modes_;
  bool has_prompts_ = false;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_INDEXED_DATASET_H_
