#include "tools/text/samples.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/text/corpus.h"

namespace tessera::text {

namespace {

constexpr int64_t kMostSize = int64_t{1} << 62;
constexpr uint64_t kRounds = 8;

}  // namespace

absl::StatusOr<Permutation> Permutation::Create(int64_t size, uint64_t key) {
  if (size < 0 || size > kMostSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("an order of ", size, "; it must be from 0 to 2^62"));
  }
  const auto cells = std::max<uint64_t>(1, static_cast<uint64_t>(size));
  // Any number near the root works, but it must be the same on every machine.
  auto rows = static_cast<uint64_t>(std::sqrt(static_cast<double>(cells)));
  while (rows * rows > cells) --rows;
  while ((rows + 1) * (rows + 1) <= cells) ++rows;
  return Permutation(size, key, rows, (cells + rows - 1) / rows);
}

// One pass of the network, a bijection of the cells: in turn, the row and the
// column move by a number that depends on the other and the round.
uint64_t Permutation::Walk(uint64_t cell) const {
  uint64_t row = cell / columns_;
  uint64_t column = cell % columns_;
  for (uint64_t round = 0; round < kRounds; round += 2) {
    row = (row + Scramble(Scramble(key_ + round) ^ column) % rows_) % rows_;
    column = (column + Scramble(Scramble(key_ + round + 1) ^ row) % columns_) %
             columns_;
  }
  return row * columns_ + column;
}

int64_t Permutation::operator()(int64_t index) const {
  auto cell = static_cast<uint64_t>(index);
  do {
    cell = Walk(cell);
  } while (cell >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(cell);
}

absl::StatusOr<BatchPartition> BatchPartition::Create(int64_t batch,
                                                      int64_t data_ranks,
                                                      int64_t micro_batch,
                                                      int64_t first_sample) {
  if (batch < 1 || data_ranks < 1 || micro_batch < 1 || first_sample < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a batch of ", batch, " samples over ", data_ranks,
        " data ranks in micro-batches of ", micro_batch, " from sample ",
        first_sample,
        ": expected at least 1, and at least 0 for the first sample"));
  }
  // The product might overflow.
  if (batch % data_ranks == 0 && batch / data_ranks % micro_batch == 0) {
    return BatchPartition(batch, data_ranks, micro_batch, first_sample);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a batch of ", batch, " samples cannot be shared by ",
                   data_ranks, " data ranks in micro-batches of ", micro_batch,
                   "; make it a multiple of their product"));
}

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
