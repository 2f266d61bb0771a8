#include "tools/text/samples.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/text/permutation.h"
#include "tools/text/scramble.h"

namespace tessera::text {
namespace {

constexpr int64_t kMostSequence = int64_t{1} << 31;

absl::Status CheckOptions(const Corpus* corpus, const SamplesOptions& options) {
  if (corpus == nullptr) return absl::InvalidArgumentError("no corpus");
  if (options.sequence < 1 || options.sequence > kMostSequence) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequences of ", options.sequence,
                     " tokens; they must have from 1 to 2^31"));
  }
  if (!(options.validation_fraction >= 0 && options.validation_fraction < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the share for validation is ", options.validation_fraction,
        "; it must be from 0 to less than 1"));
  }
  if (corpus->token_count() > options.sequence) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the data has ", corpus->token_count(), " tokens; one sample of ",
      options.sequence, " needs at least ", options.sequence + 1,
      ": give more data or shorter sequences"));
}

}  // namespace

absl::StatusOr<Samples> Samples::Create(std::shared_ptr<const Corpus> corpus,
                                        const SamplesOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckOptions(corpus.get(), options));
  const int64_t count = (corpus->token_count() - 1) / options.sequence;
  auto validation = static_cast<int64_t>(static_cast<double>(count) *
                                         options.validation_fraction);
  if (options.validation_fraction > 0) {
    validation = std::min(std::max<int64_t>(validation, 1), count - 1);
  }
  return Samples(std::move(corpus), options, count - validation, validation);
}

int64_t Samples::CorpusSample(int64_t index) const {
  const int64_t epoch = index / training_;
  const int64_t place = index % training_;
  if (!options_.shuffle) return place;
  const uint64_t key =
      Scramble(Scramble(options_.seed) + static_cast<uint64_t>(epoch));
  return (*Permutation::Create(training_, key))(place);
}

absl::Status Samples::Read(int64_t corpus_sample,
                           std::span<TokenId> tokens) const {
  if (static_cast<int64_t>(tokens.size()) != options_.sequence + 1) {
    return absl::InvalidArgumentError(absl::StrCat("room for ", tokens.size(),
                                                   " tokens; a sample has ",
                                                   options_.sequence + 1));
  }
  return corpus_->Read(corpus_sample * options_.sequence, tokens);
}

absl::Status Samples::ReadTraining(int64_t index,
                                   std::span<TokenId> tokens) const {
  if (index < 0) {
    return absl::OutOfRangeError(
        absl::StrCat("sample ", index, "; indices begin at 0"));
  }
  return Read(CorpusSample(index), tokens);
}

absl::Status Samples::ReadValidation(int64_t index,
                                     std::span<TokenId> tokens) const {
  if (index < 0 || index >= validation_) {
    return absl::OutOfRangeError(
        absl::StrCat("validation sample ", index, "; there are ", validation_));
  }
  return Read(training_ + index, tokens);
}

}  // namespace tessera::text
