#include "pipeline/synthesize/problem.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/generate/draft.h"

namespace tessera::pipeline {
namespace {

absl::Status CheckMap(const SynthesisProblem& problem) {
  if (!problem.map) return absl::OkStatus();
  const StageMap& map = *problem.map;
  const int64_t stages = problem.ranks * problem.chunks;
  if (map.ranks() == problem.ranks && map.stages() == stages) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a map of ", map.stages(), " stages on ", map.ranks(),
                   " ranks for ", problem.ranks, " ranks of ", problem.chunks,
                   problem.chunks == 1 ? " chunk" : " chunks", "; give one of ",
                   stages, " stages on ", problem.ranks, ", or none"));
}

}  // namespace

absl::Status CheckProblem(const SynthesisProblem& problem) {
  TESSERA_RETURN_IF_ERROR(CheckShape(
      {.name = "auto"}, {problem.ranks, problem.chunks, problem.microbatches}));
  TESSERA_RETURN_IF_ERROR(CheckMap(problem));
  TESSERA_RETURN_IF_ERROR(
      CheckCosts(problem.costs, problem.ranks * problem.chunks));
  if (problem.memory_limit < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a memory limit of ", problem.memory_limit,
                     " bytes; give the bytes per rank, or 0 for none"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StageMap>> MapsOf(const SynthesisProblem& problem) {
  if (problem.map) return std::vector<StageMap>{*problem.map};
  if (problem.chunks == 1 || problem.ranks == 1) {
    TESSERA_ASSIGN_OR_RETURN(StageMap map,
                             StageMap::Loop(problem.ranks, problem.chunks));
    return std::vector<StageMap>{std::move(map)};
  }
  TESSERA_ASSIGN_OR_RETURN(StageMap loop,
                           StageMap::Loop(problem.ranks, problem.chunks));
  TESSERA_ASSIGN_OR_RETURN(StageMap zigzag,
                           StageMap::Zigzag(problem.ranks, problem.chunks));
  return std::vector<StageMap>{std::move(zigzag), std::move(loop)};
}

}  // namespace tessera::pipeline
