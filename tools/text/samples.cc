#include "tools/text/samples.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/text/corpus.h"
#include "tools/text/permutation.h"
#include "tools/text/text_hash.h"

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
  for (const auto& [use, share] :
       {std::pair{"validation", options.validation_fraction},
        {"the test", options.test_fraction},
        {"validation and the test",
         options.validation_fraction + options.test_fraction}}) {
    if (share >= 0 && share < 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the share for ", use, " is ", share,
                     "; it must be from 0 to less than 1"));
  }
  if (corpus->token_count() > options.sequence || options.document_end) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the data has ", corpus->token_count(), " tokens; one sample of ",
      options.sequence, " needs at least ", options.sequence + 1,
      ": give more data or shorter sequences"));
}

// The given share of the samples, rounded down, but at least 1 and at most
// `most`.
int64_t HeldOut(int64_t count, double share, int64_t most) {
  if (share == 0) return 0;
  const auto held = static_cast<int64_t>(static_cast<double>(count) * share);
  return std::min(std::max<int64_t>(held, 1), most);
}

}  // namespace

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
  // Divides twice, because the product might overflow.
  if (batch % data_ranks == 0 && batch / data_ranks % micro_batch == 0) {
    return BatchPartition(batch, data_ranks, micro_batch, first_sample);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a batch of ", batch, " samples cannot be shared by ",
                   data_ranks, " data ranks in micro-batches of ", micro_batch,
                   "; make it a multiple of their product"));
}

absl::StatusOr<Samples> Samples::Create(std::shared_ptr<const Corpus> corpus,
                                        const SamplesOptions& options) {
  return Create({{Part{std::move(corpus)}}}, options);
}

absl::StatusOr<Samples> Samples::Create(std::span<const Part> parts,
                                        const SamplesOptions& options) {
  std::vector<double> weights;
  for (const Part& part : parts) weights.push_back(part.weight);
  TESSERA_ASSIGN_OR_RETURN(Blend blend, Blend::Create(weights));
  Samples samples(options, std::move(blend));
  for (const Part& part : parts) {
    TESSERA_RETURN_IF_ERROR(CheckOptions(part.corpus.get(), options));
    TESSERA_ASSIGN_OR_RETURN(Source source,
                             Source::Create(part.corpus, options));
    const int64_t together = options.together;
    const int64_t count = source.training / together;
    const int64_t test = HeldOut(count, options.test_fraction, count - 1);
    const int64_t validation =
        HeldOut(count, options.validation_fraction, count - test - 1);
    for (const auto& [use, share, held] :
         {std::tuple{"validation", options.validation_fraction, validation},
          {"the test", options.test_fraction, test}}) {
      if (share == 0 || held > 0 || parts.size() == 1) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "part ", samples.sources_.size(), " of the data has ",
          count == 1 ? "one sample" : absl::StrCat(count, " samples"), " of ",
          options.sequence, " tokens, and none for ", use,
          ": give it more data, or shorter sequences"));
    }
    source.training = (count - validation - test) * together;
    source.validation = validation * together;
    source.test = test * together;
    samples.training_ += source.training;
    samples.validation_ += source.validation;
    samples.test_ += source.test;
    samples.sources_.push_back(std::move(source));
  }
  return samples;
}

// All samples of the corpus are for training, for the time being.
absl::StatusOr<Samples::Source> Samples::Source::Create(
    std::shared_ptr<const Corpus> corpus, const SamplesOptions& options) {
  Source source = {.corpus = std::move(corpus)};
  if (!options.document_end) {
    source.training = (source.corpus->token_count() - 1) / options.sequence;
    return source;
  }
  TESSERA_ASSIGN_OR_RETURN(
      source.packing,
      DocumentPacking::Create(*source.corpus, *options.document_end,
                              options.sequence + 1));
  source.training = source.packing->samples();
  if (source.training > 0) return source;
  return absl::InvalidArgumentError(
      "the data has no document of two or more tokens");
}

int64_t Samples::memory_bytes() const {
  int64_t bytes = 0;
  for (const Source& source : sources_) {
    bytes += source.corpus->memory_bytes();
    if (source.packing) bytes += source.packing->memory_bytes();
  }
  return bytes;
}

int64_t Samples::bad_lines() const {
  int64_t lines = 0;
  for (const Source& source : sources_) lines += source.corpus->bad_lines();
  return lines;
}

int64_t Samples::packed_documents() const {
  int64_t documents = 0;
  for (const Source& source : sources_) {
    if (source.packing) documents += source.packing->documents();
  }
  return documents;
}

int64_t Samples::cut_documents() const {
  int64_t documents = 0;
  for (const Source& source : sources_) {
    if (source.packing) documents += source.packing->cut_documents();
  }
  return documents;
}

uint64_t Samples::fingerprint() const {
  uint64_t mixed = blend_.fingerprint();
  if (options_.document_end) {
    mixed = Scramble(mixed ^ static_cast<uint64_t>(*options_.document_end + 1));
  } else if (sources_.size() == 1) {
    return sources_[0].corpus->fingerprint();
  }
  for (const Source& source : sources_) {
    mixed = Scramble(mixed ^ source.corpus->fingerprint());
  }
  return mixed;
}

// The order of the first source does not depend on the other sources.
Blend::Place Samples::PlaceOf(int64_t index) const {
  Blend::Place place = blend_.At(index);
  const int64_t training = sources_[place.source].training;
  const auto epoch = static_cast<uint64_t>(place.index / training);
  place.index %= training;
  if (!options_.shuffle) return place;
  const uint64_t seed = place.source == 0
                            ? options_.seed
                            : Scramble(options_.seed ^ Scramble(place.source));
  const uint64_t key = Scramble(Scramble(seed) + epoch);
  const int64_t together = options_.together;
  const auto order = *Permutation::Create(training / together, key);
  place.index =
      order(place.index / together) * together + place.index % together;
  return place;
}

// Held-out samples are blended by weight, too; a source with few samples
// repeats them.
absl::StatusOr<Blend::Place> Samples::Find(SampleUse use, int64_t index) const {
  if (use == SampleUse::kTraining) {
    if (index >= 0) return PlaceOf(index);
    return absl::OutOfRangeError(
        absl::StrCat("sample ", index, "; indices begin at 0"));
  }
  if (use == SampleUse::kInOrder) {
    const Source& first = sources_[0];
    return Blend::Place{
        0, index % (first.training + first.validation + first.test)};
  }
  const bool is_test = use == SampleUse::kTest;
  const int64_t count = is_test ? test_ : validation_;
  if (index < 0 || index >= count) {
    return absl::OutOfRangeError(absl::StrCat(is_test ? "test" : "validation",
                                              " sample ", index, "; there are ",
                                              count));
  }
  Blend::Place place = blend_.At(index);
  const Source& source = sources_[place.source];
  place.index =
      is_test ? source.training + source.validation + place.index % source.test
              : source.training + place.index % source.validation;
  return place;
}

absl::Status Samples::Read(SampleUse use, int64_t index,
                           std::span<TokenId> tokens) const {
  TESSERA_ASSIGN_OR_RETURN(const Blend::Place place, Find(use, index));
  if (static_cast<int64_t>(tokens.size()) != options_.sequence + 1) {
    return absl::InvalidArgumentError(absl::StrCat("room for ", tokens.size(),
                                                   " tokens; a sample has ",
                                                   options_.sequence + 1));
  }
  const Source& source = sources_[place.source];
  if (source.packing) return ReadDocuments(source, place.index, tokens);
  return source.corpus->Read(TokensOf(place).begin, tokens);
}

absl::Status Samples::ReadDocuments(const Source& source, int64_t sample,
                                    std::span<TokenId> tokens) const {
  for (const TokenRange& document : source.packing->DocumentsOf(sample)) {
    const auto length = static_cast<size_t>(document.end - document.begin);
    TESSERA_RETURN_IF_ERROR(
        source.corpus->Read(document.begin, tokens.first(length)));
    tokens = tokens.subspan(length);
  }
  std::fill(tokens.begin(), tokens.end(), *options_.document_end);
  return absl::OkStatus();
}

// The first tokens of documents, prompts, and the tokens after the documents.
std::vector<TokenRange> Samples::MaskedInDocuments(const Source& source,
                                                   int64_t sample) const {
  TokenRanges masked;
  int64_t at = 0;
  for (const TokenRange& document : source.packing->DocumentsOf(sample)) {
    masked.Append({at, at + 1});
    if (options_.mask_prompts) {
      for (const TokenRange& part : source.corpus->prompts().PartsIn(
               {document.begin + 1, document.end})) {
        masked.Append(
            {part.begin - document.begin + at, part.end - document.begin + at});
      }
    }
    at += document.end - document.begin;
  }
  masked.Append({at, options_.sequence + 1});
  return {masked.ranges().begin(), masked.ranges().end()};
}

bool Samples::has_masks() const {
  if (options_.document_end) return true;
  return options_.mask_prompts &&
         std::any_of(sources_.begin(), sources_.end(),
                     [](const Source& source) {
                       return !source.corpus->prompts().empty();
                     });
}

absl::StatusOr<std::vector<TokenRange>> Samples::MaskedTokens(
    SampleUse use, int64_t index) const {
  TESSERA_ASSIGN_OR_RETURN(const Blend::Place place, Find(use, index));
  const Source& source = sources_[place.source];
  if (source.packing) return MaskedInDocuments(source, place.index);
  if (!options_.mask_prompts) return std::vector<TokenRange>();
  const TokenRange whole = TokensOf(place);
  std::vector<TokenRange> parts = source.corpus->prompts().PartsIn(whole);
  for (TokenRange& part : parts) {
    part.begin -= whole.begin;
    part.end -= whole.begin;
  }
  return parts;
}

absl::StatusOr<int64_t> Samples::CountTargets(SampleUse use,
                                              int64_t index) const {
  TESSERA_ASSIGN_OR_RETURN(const Blend::Place place, Find(use, index));
  const Source& source = sources_[place.source];
  if (source.packing) {
    int64_t targets = sequence() + 1;
    for (const TokenRange& part : MaskedInDocuments(source, place.index)) {
      targets -= part.end - part.begin;
    }
    return targets;  // The first token is masked and no target.
  }
  if (!options_.mask_prompts) return sequence();
  const TokenRange whole = TokensOf(place);
  return sequence() -
         source.corpus->prompts().CountIn({whole.begin + 1, whole.end});
}

}  // namespace tessera::text
