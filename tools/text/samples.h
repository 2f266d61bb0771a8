// Training samples: Samples cuts corpora into sequences and shuffles them, and
// BatchPartition assigns samples to data-parallel ranks.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Samples samples,
//       Samples::Create(corpus, {.sequence = 256, .seed = 1}));
//   // 256 inputs; the targets are the same tokens shifted by one.
//   std::vector<TokenId> tokens(257);
//   TESSERA_RETURN_IF_ERROR(samples.ReadTraining(index, tokens));
//
// A global index 0, 1, 2, ... identifies a sample regardless of ranks,
// micro-batches and restarts. With sequences of s tokens, sample k of a corpus
// is the tokens [k s, k s + s + 1): each token is an input once, except for at
// most s tokens at the end. An epoch consists of the first samples of the
// corpus, in an order that depends on the seed and the epoch; the validation
// samples follow them, and the test samples are last.
//
// With SamplesOptions::document_end, a sample is made of whole documents
// instead (document_packing.h), and of copies of that token after them. The
// first token of a document and the copies are not targets: each document is
// learned as if it were alone, if attention is within documents.
//
// Several corpora are blended by weight: Blend (blend.h) selects the corpus of
// each index, and each corpus has its own epochs.
#ifndef TESSERA_TOOLS_TEXT_SAMPLES_H_
#define TESSERA_TOOLS_TEXT_SAMPLES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "tools/text/blend.h"
#include "tools/text/corpus.h"
#include "tools/text/document_packing.h"
#include "tools/text/token_ranges.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

// Assigns the samples of each step to data-parallel ranks and micro-batches.
//
//   // 16 samples a step over 2 data-parallel ranks, 4 samples at a time.
//   TESSERA_ASSIGN_OR_RETURN(auto batch, BatchPartition::Create(16, 2, 4));
//   for (int64_t m = 0; m < batch.micro_batches(); ++m) {
//     const int64_t first = batch.FirstIndex(step, data_rank, m);
//     // Reads samples first, ..., first + 3.
//   }
//
// With a batch of B samples, step k trains on the global indices [k B, (k + 1)
// B) for every partition. Each rank gets B / ranks consecutive indices, and
// each of its micro-batches a consecutive part of these. A checkpoint only
// needs the step, or the index of the next sample if the batch size has
// changed.
class BatchPartition {
 public:
  // `first_sample` is the first global index of step 0. InvalidArgument if a
  // number is below 1, `first_sample` is negative, or `data_ranks` times
  // `micro_batch` does not divide `batch`.
  static absl::StatusOr<BatchPartition> Create(int64_t batch,
                                               int64_t data_ranks,
                                               int64_t micro_batch,
                                               int64_t first_sample = 0);

  int64_t batch() const { return batch_; }
  int64_t data_ranks() const { return data_ranks_; }
  int64_t micro_batch() const { return micro_batch_; }
  int64_t samples_per_rank() const { return batch_ / data_ranks_; }
  // The number of micro-batches per rank and step.
  int64_t micro_batches() const { return samples_per_rank() / micro_batch_; }

  // The global index of the first sample of a micro-batch. `step` is not
  // negative; `data_rank` and `micro_batch_index` are below their counts.
  int64_t FirstIndex(int64_t step, int64_t data_rank,
                     int64_t micro_batch_index) const {
    return first_sample_ + step * batch_ + data_rank * samples_per_rank() +
           micro_batch_index * micro_batch_;
  }

 private:
  BatchPartition(int64_t batch, int64_t data_ranks, int64_t micro_batch,
                 int64_t first_sample)
      : batch_(batch),
        data_ranks_(data_ranks),
        micro_batch_(micro_batch),
        first_sample_(first_sample) {}

  int64_t batch_;
  int64_t data_ranks_;
  int64_t micro_batch_;
  int64_t first_sample_;
};

struct SamplesOptions {
  int64_t sequence = 0;  // Tokens per sample, without the last target.
  // Fraction of the samples in [0, 1), rounded down, but at least one sample if
  // the fraction is positive and there are at least two samples.
  double validation_fraction = 0;
  // The same for the test samples, which follow the validation samples.
  double test_fraction = 0;
  uint64_t seed = 0;
  bool shuffle = true;  // False keeps the corpus order.
  // Excludes the tokens of prompts (Corpus::prompts) from the targets.
  bool mask_prompts = true;
  // The token that ends a document. If it is set, documents are not split.
  std::optional<TokenId> document_end = {};
  // Samples [k together, (k + 1) together) of a corpus are shuffled and held
  // out as one. Only for a single corpus.
  int64_t together = 1;
};

// What a sample is for. kInOrder: all samples of the first corpus in their
// order, again and again.
enum class SampleUse { kTraining, kValidation, kTest, kInOrder };

// The sequences of one or several corpora by global index. Const calls are
// thread-safe.
class Samples {
 public:
  // InvalidArgument if an option is out of range, or if the corpus has too few
  // tokens for one sample; the message then gives the required number.
  static absl::StatusOr<Samples> Create(std::shared_ptr<const Corpus> corpus,
                                        const SamplesOptions& options);

  // Blends several corpora by weight. Each has its own order and its own
  // validation and test samples. Also returns the errors of Blend::Create, and
  // InvalidArgument if a corpus has too few samples for one of the uses.
  struct Part {
    std::shared_ptr<const Corpus> corpus;
    double weight = 1;
  };
  static absl::StatusOr<Samples> Create(std::span<const Part> parts,
                                        const SamplesOptions& options);

  int64_t sequence() const { return options_.sequence; }
  size_t parts() const { return sources_.size(); }
  const Corpus& corpus(size_t part = 0) const { return *sources_[part].corpus; }
  // The memory of all corpora.
  int64_t memory_bytes() const;
  // The fingerprint of a single corpus; otherwise a hash of the fingerprints of
  // all corpora and of the blend.
  uint64_t fingerprint() const;
  // Training samples of all corpora; at least 1.
  int64_t samples_per_epoch() const { return training_; }
  int64_t validation_count() const { return validation_; }
  int64_t test_count() const { return test_; }
  // The number of samples of all uses.
  int64_t samples() const { return training_ + validation_ + test_; }
  // The invalid lines of all corpora that were skipped.
  int64_t bad_lines() const;
  // The documents of all corpora, and those that are longer than a sample and
  // lose their ends; 0 without SamplesOptions::document_end.
  int64_t packed_documents() const;
  int64_t cut_documents() const;

  // The corpus of a global training index, and the sample within that corpus.
  // `index` is not negative.
  Blend::Place PlaceOf(int64_t index) const;

  // The number of a sample in its corpus. OutOfRange as for Read.
  absl::StatusOr<int64_t> NumberOf(SampleUse use, int64_t index) const {
    TESSERA_ASSIGN_OR_RETURN(const Blend::Place place, Find(use, index));
    return place.index;
  }

  // Reads a sample into `tokens`, which must have sequence() + 1 elements.
  // InvalidArgument for another size; OutOfRange if `index` is negative or, for
  // validation and test, not below the count; otherwise the errors of
  // Corpus::Read.
  absl::Status Read(SampleUse use, int64_t index,
                    std::span<TokenId> tokens) const;
  absl::Status ReadTraining(int64_t index, std::span<TokenId> tokens) const {
    return Read(SampleUse::kTraining, index, tokens);
  }

  // True if some tokens are masked, that is, excluded from the targets.
  bool has_masks() const;
  // The masked ranges of a sample's tokens, within [0, sequence() + 1). The
  // first token is never a target. OutOfRange as for Read.
  absl::StatusOr<std::vector<TokenRange>> MaskedTokens(SampleUse use,
                                                       int64_t index) const;
  // The number of unmasked targets of a sample. Does not read tokens.
  // OutOfRange as for Read.
  absl::StatusOr<int64_t> CountTargets(SampleUse use, int64_t index) const;

 private:
  // A corpus and its numbers of training, validation and test samples.
  struct Source {
    std::shared_ptr<const Corpus> corpus;
    int64_t training = 0;
    int64_t validation = 0;
    int64_t test = 0;
    std::optional<DocumentPacking> packing = {};

    static absl::StatusOr<Source> Create(std::shared_ptr<const Corpus> corpus,
                                         const SamplesOptions& options);
  };

  Samples(SamplesOptions options, Blend blend)
      : options_(options), blend_(std::move(blend)) {}

  // The corpus of a sample, and the index within that corpus.
  absl::StatusOr<Blend::Place> Find(SampleUse use, int64_t index) const;
  // The tokens of a sample in its corpus.
  TokenRange TokensOf(const Blend::Place& place) const {
    const int64_t begin = place.index * options_.sequence;
    return {begin, begin + options_.sequence + 1};
  }
  absl::Status ReadDocuments(const Source& source, int64_t sample,
                             std::span<TokenId> tokens) const;
  std::vector<TokenRange> MaskedInDocuments(const Source& source,
                                            int64_t sample) const;

  SamplesOptions options_;
  Blend blend_;
  std::vector<Source> sources_;
  int64_t training_ = 0;
  int64_t validation_ = 0;
  int64_t test_ = 0;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_SAMPLES_H_
