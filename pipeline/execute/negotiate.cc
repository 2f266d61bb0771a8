#include "pipeline/execute/negotiate.h"

#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::pipeline {
namespace {

absl::StatusOr<TensorSpec> Ask(Stage& stage, const TensorSpec* input) {
  TESSERA_ASSIGN_OR_RETURN(TensorSpec spec, stage.OutputSpec(input));
  TESSERA_RETURN_IF_ERROR(CheckSpec(spec));
  return spec;
}

}  // namespace

absl::StatusOr<std::vector<TensorSpec>> Negotiate(
    collectives::Communicator& communicator, const StageMap& map,
    const StageOf& stage_of, const collectives::CallOptions& call) {
  std::vector<TensorSpec> boundaries;
  const int64_t rank = communicator.rank().value();
  for (int32_t stage = 0; stage + 1 < map.stages(); ++stage) {
    const std::string place = absl::StrCat(
        "rank ", rank, ": the output of stage ", stage, " of ", map.stages());
    const TensorSpec* const input = stage == 0 ? nullptr : &boundaries.back();
    const int32_t owner = map.RankOf(stage);
    WireSpec wire = {};
    if (owner == rank) {
      TESSERA_ASSIGN_OR_RETURN(const TensorSpec spec,
                               Ask(stage_of(stage), input), Annotate(_, place));
      wire = ToWire(spec);
    }
    TESSERA_RETURN_IF_ERROR(
        communicator.Broadcast(collectives::Buffer(std::span(wire)),
                               collectives::Rank(owner), call),
        Annotate(_, place));
    TESSERA_ASSIGN_OR_RETURN(TensorSpec told, FromWire(wire),
                             Annotate(_, place));
    if (owner != rank && map.RankFromBack(stage) == rank) {
      TESSERA_ASSIGN_OR_RETURN(const TensorSpec spec,
                               Ask(stage_of(stage), input), Annotate(_, place));
      if (spec != told) {
        return absl::InvalidArgumentError(absl::StrCat(
            place, " is ", spec.ToString(), ", but its copy on rank ", owner,
            " gives ", told.ToString()));
      }
    }
    boundaries.push_back(std::move(told));
  }
  return boundaries;
}

}  // namespace tessera::pipeline
