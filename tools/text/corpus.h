// Corpus, all documents of the training data as one sequence of tokens, and
// PackedTokens, in which it keeps token ids.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::shared_ptr<const Corpus> corpus,
//       Corpus::Open({{"docs", "src/*.cc", "more.u16"}}, ByteTokenizer()));
//   std::vector<TokenId> tokens(257);
//   TESSERA_RETURN_IF_ERROR(corpus->Read(4096, tokens));
//
// Open reads and tokenises text files and keeps their tokens in memory, with 2
// bytes per token if the vocabulary has at most 65536 entries and 4 bytes
// otherwise, or on disk in a TokenCache. Each document ends with the
// tokenizer's end-of-text token, if it has one; documents of tokens are used as
// they are (document_encoder.h). Token files and cache entries stay on disk;
// only the positions of their prompts are in memory. data_files.h defines which
// files a path stands for, and their order.
#ifndef TESSERA_TOOLS_TEXT_CORPUS_H_
#define TESSERA_TOOLS_TEXT_CORPUS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/text/token_cache.h"
#include "tools/text/token_file.h"
#include "tools/text/token_ranges.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

// Token ids in 2 or 4 bytes each.
class PackedTokens {
 public:
  // Ids are in [0, vocabulary).
  explicit PackedTokens(int64_t vocabulary) : narrow_(vocabulary <= 65536) {}

  int64_t size() const {
    return static_cast<int64_t>(narrow_ ? small_.size() : large_.size());
  }

  int64_t bytes() const {
    return size() *
           static_cast<int64_t>(narrow_ ? sizeof(uint16_t) : sizeof(TokenId));
  }

  void Append(std::span<const TokenId> ids) {
    if (narrow_) {
      small_.insert(small_.end(), ids.begin(), ids.end());
    } else {
      large_.insert(large_.end(), ids.begin(), ids.end());
    }
  }

  // Copies the ids [begin, begin + ids.size()).
  void Read(int64_t begin, std::span<TokenId> ids) const {
    const auto count = static_cast<std::ptrdiff_t>(ids.size());
    if (narrow_) {
      std::copy_n(small_.begin() + begin, count, ids.begin());
    } else {
      std::copy_n(large_.begin() + begin, count, ids.begin());
    }
  }

 private:
  bool narrow_;
  std::vector<uint16_t> small_;
  std::vector<TokenId> large_;
};

// An immutable sequence of tokens. Const calls are thread-safe.
class Corpus {
 public:
  // Returns the errors of FindDataFiles, ForEachDocument and TokenFile::Open.
  // If the cache cannot store a text, for example because the disk is full, the
  // text is tokenised in memory. The cache does not change the corpus.
  // Up to `max_bad_lines` invalid lines of JSON, of all files together, are
  // skipped; texts with such lines are not cached.
  static absl::StatusOr<std::shared_ptr<const Corpus>> Open(
      std::span<const std::string> paths, const Tokenizer& tokenizer,
      const TokenCache& cache = TokenCache(""), int64_t max_bad_lines = 0);

  // Create a corpus from documents in memory. InvalidArgument if there are
  // none.
  static absl::StatusOr<std::shared_ptr<const Corpus>> FromDocuments(
      std::span<const Document> documents, const Tokenizer& tokenizer);
  static absl::StatusOr<std::shared_ptr<const Corpus>> FromTexts(
      std::span<const std::string> texts, const Tokenizer& tokenizer);

  int64_t token_count() const { return starts_.back(); }
  int64_t file_count() const { return file_count_; }
  // The invalid lines that were skipped.
  int64_t bad_lines() const { return bad_lines_; }

  // The tokens of prompts and other masked tokens, which training learns to
  // continue but not to produce.
  const TokenRanges& prompts() const { return prompts_; }

  // The memory for the tokens of texts and for the positions of prompts; token
  // files use none.
  int64_t memory_bytes() const;

  // Reads the tokens [begin, begin + tokens.size()). OutOfRange past the end;
  // otherwise the errors of TokenFile::Read.
  absl::Status Read(int64_t begin, std::span<TokenId> tokens) const;

  // A hash of all tokens of texts (cached or not), of the length and the first
  // and last 65536 tokens of each token file, and of the positions of prompts.
  // A checkpoint stores it to detect changed data on resume.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  using Segment = std::variant<PackedTokens, TokenFile>;

  Corpus() = default;

  PackedTokens& LastTexts(int64_t vocabulary);
  void AddDocument(const Document& document, const Tokenizer& tokenizer);
  absl::Status AddTokenFile(const std::string& path, int64_t vocabulary);
  // Reads all tokens for the fingerprint. An error leaves the corpus unchanged.
  absl::Status AddCachedText(TokenFile file);
  void AddSegment(TokenFile file);
  void Mix(std::span<const TokenId> tokens);
  // Adds the prompts to the fingerprint; call it after all documents. Without
  // prompts it has no effect.
  void MixPrompts();

  std::vector<Segment> segments_;
  std::vector<int64_t> starts_ = {0};  // Start of each segment, then the end.
  TokenRanges prompts_;
  int64_t file_count_ = 0;
  int64_t bad_lines_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_CORPUS_H_
