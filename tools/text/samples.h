// Samples: the sequences of a corpus, in the order in which a run trains on
// them.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Samples samples,
//       Samples::Create(corpus, {.sequence = 256, .seed = 1}));
//   std::vector<TokenId> tokens(257);  // Inputs are the first 256, targets the
//                                      // last.
//   TESSERA_RETURN_IF_ERROR(samples.ReadTraining(index, tokens));
//
// A global index 0, 1, 2, ... names a sample; which rank reads it, in which
// micro-batch, and how far the run was when it was interrupted do not matter.
// Sample k of the corpus is the tokens [k s, k s + s + 1) for sequences of s:
// each token is an input once, but for the last up to s ones. The last samples
// of the corpus are for validation, the others are the epoch; each epoch has
// them in an order of its own, which the seed determines.
#ifndef TESSERA_TOOLS_TEXT_SAMPLES_H_
#define TESSERA_TOOLS_TEXT_SAMPLES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/text/corpus.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

struct SamplesOptions {
  int64_t sequence = 0;  // Tokens that the model sees.
  // Of the samples, rounded down, but at least one where it is not zero and
  // there are two samples. In [0, 1).
  double validation_fraction = 0;
  uint64_t seed = 0;
  bool shuffle = true;  // False: in the order of the corpus.
};

// Const calls may be made by several threads at once.
class Samples {
 public:
  // InvalidArgument where the corpus has too few tokens for one sample (the
  // message says how many are needed) or an option is out of its range.
  static absl::StatusOr<Samples> Create(std::shared_ptr<const Corpus> corpus,
                                        const SamplesOptions& options);

  int64_t sequence() const { return options_.sequence; }
  int64_t samples_per_epoch() const { return training_; }  // At least 1.
  int64_t validation_count() const { return validation_; }

  // `index` is not negative.
  int64_t EpochOf(int64_t index) const { return index / training_; }
  // Which sample of the corpus a global index names, in [0,
  // samples_per_epoch()).
  int64_t CorpusSample(int64_t index) const;

  // Sets `tokens`, of sequence() + 1. InvalidArgument where it has another
  // size, OutOfRange where `index` is negative or, for validation, not below
  // validation_count(); else what Corpus::Read refuses.
  absl::Status ReadTraining(int64_t index, std::span<TokenId> tokens) const;
  absl::Status ReadValidation(int64_t index, std::span<TokenId> tokens) const;

 private:
  Samples(std::shared_ptr<const Corpus> corpus, SamplesOptions options,
          int64_t training, int64_t validation)
      : corpus_(std::move(corpus)),
        options_(options),
        training_(training),
        validation_(validation) {}

  absl::Status Read(int64_t corpus_sample, std::span<TokenId> tokens) const;

  std::shared_ptr<const Corpus> corpus_;
  SamplesOptions options_;
  int64_t training_;
  int64_t validation_;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_SAMPLES_H_
