// Samples: the sequences of a corpus in the order of training; BatchPartition:
// the samples of each rank; Permutation: the order of an epoch.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Samples samples,
//       Samples::Create(corpus, {.sequence = 256, .seed = 1}));
//   std::vector<TokenId> tokens(257);  // 256 inputs, shifted by one the
//   targets. TESSERA_RETURN_IF_ERROR(samples.ReadTraining(index, tokens));
//
// A global index 0, 1, 2, ... names a sample, independent of the rank, the
// micro-batch and interruptions. Sample k of the corpus is the tokens
// [k s, k s + s + 1) for sequences of s: each token is an input once, except
// the last up to s ones. The last samples of the corpus are for validation and,
// at its end, for a test; the others are the epoch; each epoch has its own
// order, which the seed determines.
//
// Several corpora are blended by weights: Blend determines the corpus of each
// index, and each corpus has its own epochs.
#ifndef TESSERA_TOOLS_TEXT_SAMPLES_H_
#define TESSERA_TOOLS_TEXT_SAMPLES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/text/corpus.h"
#include "tools/text/token_ranges.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

// An order of n items that is computed, not stored.
//
//   TESSERA_ASSIGN_OR_RETURN(auto order, Permutation::Create(n, /*key=*/7));
//   order(0);  // Each of 0, ..., n - 1 is the value of one index.
//
// A Feistel network over a x b >= n cells, with a and b near the root of n; the
// few cells past the end, at most about sqrt(n), are skipped. An element takes
// constant time. Good enough for shuffling, not for encryption. Source: Black
// and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002, methods 2
// and 3.
class Permutation {
 public:
  // InvalidArgument if `size` is not in [0, 2^62]. The same key gives the same
  // order on every machine and in every version of Tessera.
  static absl::StatusOr<Permutation> Create(int64_t size, uint64_t key);

  int64_t size() const { return size_; }

  // The element at `index`, which is in [0, size()).
  int64_t operator()(int64_t index) const;

 private:
  Permutation(int64_t size, uint64_t key, uint64_t rows, uint64_t columns)
      : size_(size), key_(key), rows_(rows), columns_(columns) {}

  uint64_t Walk(uint64_t cell) const;

  int64_t size_;
  uint64_t key_;
  uint64_t rows_, columns_;
};

// The samples of each data-parallel rank in each step.
//
//   // 16 samples a step over 2 data-parallel ranks, 4 samples at a time.
//   TESSERA_ASSIGN_OR_RETURN(auto batch, BatchPartition::Create(16, 2, 4));
//   for (int64_t m = 0; m < batch.micro_batches(); ++m) {
//     const int64_t first = batch.FirstIndex(step, data_rank, m);
//     // Reads samples first, ..., first + 3.
//   }
//
// Step k trains on the global indices [k B, (k + 1) B) for every partition:
// rank r has B / ranks consecutive ones, and its micro-batches are consecutive
// ones of these. A checkpoint needs only the step, or the index of the next
// sample if the batch has changed.
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
  // Micro-batches of each rank in each step.
  int64_t micro_batches() const { return samples_per_rank() / micro_batch_; }

  // The global index of the first of the micro_batch() samples. `step` is not
  // negative, `data_rank` and `micro_batch_index` are below their counts.
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

// Which of several sources each of a sequence of samples comes from.
//
//   TESSERA_ASSIGN_OR_RETURN(Blend blend, Blend::Create({{0.7, 0.3}}));
//   Blend::Place place = blend.At(1000);  // Source 0 or 1, and its next
//   sample.
//
// Computed for any index, in time that grows with the logarithm of the number
// of sources. Of the first n samples source s has weight s * n, to within (1 +
// log2 of the sources, rounded up) / 2; its samples are 0, 1, 2, ... in order.
class Blend {
 public:
  struct Place {
    size_t source = 0;
    int64_t index = 0;  // Among the source's samples.

    friend bool operator==(const Place&, const Place&) = default;
  };

  // Weights are made to add up to 1. InvalidArgument if there is none, or one
  // is not positive and finite, or below 1e-9 of the sum.
  static absl::StatusOr<Blend> Create(std::span<const double> weights);

  // `index` is in [0, 2^62].
  Place At(int64_t index) const;

  // A hash of the weights.
  uint64_t fingerprint() const;

 private:
  explicit Blend(std::vector<int64_t> sums) : sums_(std::move(sums)) {}

  // Before each source, and at the end, the sum of the weights as integers.
  std::vector<int64_t> sums_;
};

struct SamplesOptions {
  int64_t sequence = 0;  // Tokens of a sample, without the last target.
  // Share of the samples in [0, 1), rounded down, but at least one sample if it
  // is above 0 and there are two samples.
  double validation_fraction = 0;
  // The same of the samples after those of validation.
  double test_fraction = 0;
  uint64_t seed = 0;
  bool shuffle = true;  // False: corpus order.
  // Tokens of prompts (Corpus::prompts) are no targets. False: like all others.
  bool mask_prompts = true;
};

// What a sample is for.
enum class SampleUse { kTraining, kValidation, kTest };

// Const calls are thread-safe.
class Samples {
 public:
  // InvalidArgument if the corpus has too few tokens for one sample (with the
  // required number) or an option is out of range.
  static absl::StatusOr<Samples> Create(std::shared_ptr<const Corpus> corpus,
                                        const SamplesOptions& options);

  // Several corpora, each with its shares of validation and test and an order
  // of its own, by weights; also the errors of Blend::Create, and
  // InvalidArgument if one has too few samples for each use.
  struct Part {
    std::shared_ptr<const Corpus> corpus;
    double weight = 1;
  };
  static absl::StatusOr<Samples> Create(std::span<const Part> parts,
                                        const SamplesOptions& options);

  int64_t sequence() const { return options_.sequence; }
  size_t parts() const { return sources_.size(); }
  const Corpus& corpus(size_t part = 0) const { return *sources_[part].corpus; }
  // Of all corpora.
  int64_t memory_bytes() const;
  // A hash of those of the corpora and of the blend; of one corpus, its own.
  uint64_t fingerprint() const;
  // Of all corpora; at least 1.
  int64_t samples_per_epoch() const { return training_; }
  int64_t validation_count() const { return validation_; }
  int64_t test_count() const { return test_; }

  // The corpus of a global index, and its sample in the corpus. `index` is not
  // negative.
  Blend::Place PlaceOf(int64_t index) const;

  // Sets the sequence() + 1 `tokens`. InvalidArgument for another size,
  // OutOfRange if `index` is negative or, for validation and test, not below
  // the count; otherwise the errors of Corpus::Read.
  absl::Status Read(SampleUse use, int64_t index,
                    std::span<TokenId> tokens) const;
  absl::Status ReadTraining(int64_t index, std::span<TokenId> tokens) const {
    return Read(SampleUse::kTraining, index, tokens);
  }
  absl::Status ReadValidation(int64_t index, std::span<TokenId> tokens) const {
    return Read(SampleUse::kValidation, index, tokens);
  }
  absl::Status ReadTest(int64_t index, std::span<TokenId> tokens) const {
    return Read(SampleUse::kTest, index, tokens);
  }

  // True if tokens of some samples are masked: they are no targets.
  bool has_masks() const;
  // The ranges of a sample's tokens that are masked, from 0 to sequence() + 1.
  // The first token is the target of none. OutOfRange as Read.
  absl::StatusOr<std::vector<TokenRange>> MaskedTokens(SampleUse use,
                                                       int64_t index) const;
  // The number of a sample's targets that are not masked; without reading
  // tokens. OutOfRange as Read.
  absl::StatusOr<int64_t> CountTargets(SampleUse use, int64_t index) const;

 private:
  // The samples of a corpus: those of training, of validation, and of the test.
  struct Source {
    std::shared_ptr<const Corpus> corpus;
    int64_t training = 0;
    int64_t validation = 0;
    int64_t test = 0;
  };

  Samples(SamplesOptions options, Blend blend)
      : options_(options), blend_(std::move(blend)) {}

  // The corpus of a sample, and its place there.
  absl::StatusOr<Blend::Place> Find(SampleUse use, int64_t index) const;
  // The tokens of a place in its corpus.
  TokenRange TokensOf(const Blend::Place& place) const {
    const int64_t begin = place.index * options_.sequence;
    return {begin, begin + options_.sequence + 1};
  }

  SamplesOptions options_;
  Blend blend_;
  std::vector<Source> sources_;
  int64_t training_ = 0;
  int64_t validation_ = 0;
  int64_t test_ = 0;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_SAMPLES_H_
