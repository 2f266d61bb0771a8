// The checks of what a pipeline schedule asks for.
#include <algorithm>
#include <limits>
#include <optional>

#include "topology/config/internal/checks.h"

namespace tessera::topology::internal {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// a * b, or nothing where it exceeds 2^63-1.
std::optional<int64_t> Times(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

std::string RangeText(int64_t least, int64_t most) {
  if (least == most) return absl::StrCat("exactly ", least);
  if (most == ScheduleTraits::kNoLimit) return absl::StrCat("at least ", least);
  return absl::StrCat("from ", least, " to ", most);
}

std::string By(const PipelineShape& shape) {
  return absl::StrCat(" with schedule ", EnumName(shape.schedule));
}

ConfigProblems CheckChunks(const PipelineShape& shape,
                           const ScheduleTraits& traits) {
  const int64_t fitting =
      std::clamp(shape.chunks, traits.min_chunks, traits.max_chunks);
  if (shape.chunks == fitting) return {};
  return {SizeProblem(
      "chunks", shape.chunks,
      absl::StrCat(RangeText(traits.min_chunks, traits.max_chunks), By(shape)),
      fitting)};
}

// The largest pp up to `most` that the schedule takes, or 0.
int64_t LargestPp(int64_t most, const ScheduleTraits& traits) {
  return traits.even_pp ? most - most % 2 : most;
}

ConfigProblems CheckEvenPp(const PipelineShape& shape,
                           const ScheduleTraits& traits) {
  if (!traits.even_pp || shape.pp % 2 == 0) return {};
  const std::string allowed = absl::StrCat("an even number", By(shape));
  // As many as there are layers for, where that allows any.
  const int64_t layered = LargestPp(shape.layers / shape.chunks, traits);
  const int64_t most = layered >= 2 ? layered : kMax - 1;
  const int64_t below = std::min(shape.pp - 1, most);
  if (below < 2) return {SizeProblem("pp", shape.pp, allowed, 2)};
  return {
      SizeProblem("pp", shape.pp, allowed, below,
                  shape.pp < most ? absl::StrCat(" or ", shape.pp + 1) : "")};
}

// There are fewer layers than stages: fewer chunks where that is enough, else
// fewer ranks, else more layers.
ConfigProblem TooFewLayers(const PipelineShape& shape,
                           const ScheduleTraits& traits,
                           std::optional<int64_t> stages) {
  const std::string why =
      absl::StrCat(" with ", shape.layers,
                   shape.layers == 1 ? " layer" : " layers", " and ");
  const std::string or_layers =
      stages.has_value() ? absl::StrCat(", or layers to at least ", *stages)
                         : std::string();
  const int64_t chunks = std::min(shape.layers / shape.pp, traits.max_chunks);
  if (chunks >= traits.min_chunks) {
    return SizeProblem("chunks", shape.chunks,
                       absl::StrCat(RangeText(traits.min_chunks, chunks), why,
                                    "pp ", shape.pp),
                       chunks, or_layers);
  }
  const int64_t pp = LargestPp(shape.layers / shape.chunks, traits);
  const int64_t least_pp = traits.even_pp ? 2 : 1;
  if (pp >= least_pp) {
    return SizeProblem(
        "pp", shape.pp,
        absl::StrCat(RangeText(least_pp, pp), why, "chunks ", shape.chunks), pp,
        or_layers);
  }
  if (stages.has_value()) {
    return SizeProblem("layers", shape.layers,
                       absl::StrCat("at least ", *stages,
                                    ", one for each of pp * chunks stages"),
                       *stages, " or more");
  }
  return {.field = "layers",
          .given = absl::StrCat(shape.layers),
          .allowed = "at least pp * chunks, which exceeds 2^63-1",
          .fix = "make pp or chunks smaller",
          .replacement = std::nullopt};
}

ConfigProblems CheckLayers(const PipelineShape& shape,
                           const ScheduleTraits& traits) {
  const std::optional<int64_t> stages = Times(shape.pp, shape.chunks);
  if (shape.layers < 1) {
    const int64_t least = stages.value_or(1);
    return {SizeProblem(
        "layers", shape.layers,
        absl::StrCat("at least ", least,
                     least > 1 ? ", one for each of pp * chunks stages" : ""),
        least, " or more")};
  }
  if (stages.has_value() && shape.layers >= *stages) return {};
  return {TooFewLayers(shape, traits, stages)};
}

}  // namespace

ConfigProblems CheckPipeline(const PipelineShape& given) {
  const ScheduleTraits traits = TraitsOf(given.schedule);
  // The checks that depend on pp and chunks take these as they will be mended.
  PipelineShape shape = given;
  shape.pp = std::max<int64_t>(given.pp, 1);
  shape.chunks = std::clamp(given.chunks, traits.min_chunks, traits.max_chunks);

  ConfigProblems problems = CheckEvenPp(shape, traits);
  Append(CheckLayers(shape, traits), problems);
  if (shape.micro_batch_size < 1) {
    problems.push_back(SizeProblem("micro_batch_size", shape.micro_batch_size,
                                   "at least 1", 1, " or more"));
  }
  if (shape.micro_batches < 1) {
    problems.push_back(
        SizeProblem("micro_batches", shape.micro_batches, "at least 1", 1));
  }
  Append(CheckChoice("schedule", shape.schedule), problems);
  Append(CheckChunks(given, traits), problems);
  return problems;
}

}  // namespace tessera::topology::internal
