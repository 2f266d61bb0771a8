#include "pipeline/generate/draft.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::pipeline {
namespace {

absl::Status Refuse(const ShapeRule& rule, const PipelineShape& shape,
                    std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      rule.name, " for ", shape.ranks, " ranks, ", shape.chunks, " chunks and ",
      shape.microbatches, " micro-batches: ", what));
}

// Computed without overflow; all three counts are at least 1.
bool Fits(int64_t ranks, int64_t chunks, int64_t microbatches) {
  const int64_t most = kMostActions / 3;
  return ranks <= most && chunks <= most / ranks &&
         microbatches <= most / ranks / chunks;
}

std::string TooMany(const ShapeRule& rule, const PipelineShape& shape) {
  const int64_t least = rule.PatternMicroBatches(1);
  const int64_t most = kMostActions / 3 / shape.ranks / shape.chunks;
  std::string what = absl::StrCat("more than ", kMostActions,
                                  " actions, 3 of each stage and micro-batch");
  if (least > 1 || rule.multiple_of > 1) {
    absl::StrAppend(&what, " (of ", least, " or more, a multiple of ",
                    rule.multiple_of, ")");
  }
  absl::StrAppend(&what, "; ");
  if (most < least) return absl::StrCat(what, "fewer ranks or chunks work");
  return absl::StrCat(what, most / rule.multiple_of * rule.multiple_of,
                      " micro-batches work");
}

}  // namespace

int64_t ShapeRule::PatternMicroBatches(int64_t microbatches) const {
  const int64_t most = std::max(microbatches, least_microbatches);
  return (most + multiple_of - 1) / multiple_of * multiple_of;
}

absl::Status CheckShape(const ShapeRule& rule, const PipelineShape& shape) {
  if (shape.ranks < 1 || shape.chunks < 1 || shape.microbatches < 1) {
    const int64_t least_ranks = rule.even_ranks ? 2 : 1;
    return Refuse(
        rule, shape,
        absl::StrCat(
            "no count may be less than 1; ", std::max(shape.ranks, least_ranks),
            " ranks, ",
            rule.chunks > 0 ? rule.chunks : std::max<int64_t>(shape.chunks, 1),
            " chunks and ", std::max<int64_t>(shape.microbatches, 1),
            " micro-batches work"));
  }
  if (rule.chunks > 0 && shape.chunks != rule.chunks) {
    return Refuse(
        rule, shape,
        absl::StrCat("the method has ", rule.chunks,
                     " chunks on each rank; chunks = ", rule.chunks, " works"));
  }
  if (!Fits(shape.ranks, shape.chunks, shape.microbatches) ||
      !Fits(shape.ranks, shape.chunks,
            rule.PatternMicroBatches(shape.microbatches))) {
    return Refuse(rule, shape, TooMany(rule, shape));
  }
  if (rule.even_ranks && shape.ranks % 2 == 1) {
    const std::string fewer =
        shape.ranks > 1 ? absl::StrCat(shape.ranks - 1, " or ") : "";
    return Refuse(
        rule, shape,
        absl::StrCat(
            "the number of ranks must be even, since each has a partner "
            "with the same stages; ",
            fewer, shape.ranks + 1, " ranks work"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Schedule> EmptySchedule(std::string_view name,
                                       absl::StatusOr<StageMap> map,
                                       int64_t microbatches) {
  TESSERA_RETURN_IF_ERROR(map.status());
  Schedule schedule;
  schedule.name = std::string(name);
  schedule.map = *std::move(map);
  schedule.microbatches = static_cast<int32_t>(microbatches);
  return schedule;
}

}  // namespace tessera::pipeline
