// DocumentPacking: which whole documents of a corpus share a sample.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const DocumentPacking packing,
//       DocumentPacking::Create(*corpus, end_of_text, /*capacity=*/257));
//   for (const TokenRange& document : packing.DocumentsOf(sample)) ...
#ifndef TESSERA_TOOLS_TEXT_DOCUMENT_PACKING_H_
#define TESSERA_TOOLS_TEXT_DOCUMENT_PACKING_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/text/corpus.h"
#include "tools/text/token_ranges.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

// Best-fit decreasing: the longest document that is left goes to the sample
// with the least room for it. Source: Ding et al., Fewer Truncations Improve
// Language Modeling, arXiv 2404.10830, section 3.
class DocumentPacking {
 public:
  // Reads all tokens. Documents end with the token `end`, or with the corpus.
  // Those of one token, which have no target, are left out; of those with more
  // than `capacity` tokens the first ones are kept. Samples are in the order of
  // their first documents, and so are the documents of a sample. The errors of
  // Corpus::Read.
  static absl::StatusOr<DocumentPacking> Create(const Corpus& corpus,
                                                TokenId end, int64_t capacity);

  int64_t samples() const { return static_cast<int64_t>(begins_.size()) - 1; }
  // The tokens of the documents of a sample, in the corpus.
  std::span<const TokenRange> DocumentsOf(int64_t sample) const {
    const auto at = static_cast<size_t>(sample);
    return std::span(documents_)
        .subspan(begins_[at], begins_[at + 1] - begins_[at]);
  }
  int64_t documents() const { return static_cast<int64_t>(documents_.size()); }
  // The documents that were longer than the capacity.
  int64_t cut_documents() const { return cut_; }
  int64_t memory_bytes() const;

 private:
  std::vector<TokenRange> documents_;  // By sample.
  std::vector<size_t> begins_ = {0};   // The first document of each sample.
  int64_t cut_ = 0;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_DOCUMENT_PACKING_H_
