#include "zero3/layout/moves.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"

namespace tessera::zero3 {
namespace {

using topology::Rank;

absl::Status Missing(const Parameter& parameter, std::string_view where) {
  return absl::InvalidArgumentError(absl::StrCat(
      "parameter ", Quoted(parameter.name()), " is missing in the ", where,
      " layout; both must be of the same model"));
}

// By id of the target, the id in the source.
absl::StatusOr<std::vector<ParameterId>> MatchByName(
    const ModelParameters& from, const ModelParameters& to) {
  std::vector<ParameterId> ids;
  for (const Parameter& parameter : to.all()) {
    const absl::StatusOr<ParameterId> id = from.Find(parameter.name());
    if (!id.ok()) return Missing(parameter, "source");
    if (from[*id].elements != parameter.elements) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter ", Quoted(parameter.name()), " has ", from[*id].elements,
          " elements in the source layout and ", parameter.elements,
          " in the target; both must be of the same model"));
    }
    ids.push_back(*id);
  }
  if (from.count() == to.count()) return ids;
  for (const Parameter& parameter : from.all()) {
    if (!to.Find(parameter.name()).ok()) return Missing(parameter, "target");
  }
  return ids;
}

void Append(const StateLayout& from, const StateLayout& to, Rank rank,
            const std::vector<ParameterId>& ids, std::vector<Move>& moves) {
  for (const Extent& target : to.ExtentsOf(rank)) {
    const ParameterId id = ids[static_cast<size_t>(target.parameter.value())];
    for (const Extent& source : from.Locate(id, target.begin, target.end)) {
      moves.push_back(
          {.parameter = target.parameter,
           .element = source.begin,
           .from = {source.rank, source.offset},
           .to = {rank, target.offset + source.begin - target.begin},
           .length = source.size()});
    }
  }
}

}  // namespace

absl::StatusOr<std::vector<Move>> MovesTo(const StateLayout& from,
                                          const StateLayout& to, Rank rank) {
  if (!to.Contains(rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the target layout has no rank ", rank.value(),
                     "; allowed: 0 to below ", to.ranks()));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ParameterId> ids,
                           MatchByName(from.model(), to.model()));
  std::vector<Move> moves;
  Append(from, to, rank, ids, moves);
  return moves;
}

absl::StatusOr<std::vector<Move>> AllMoves(const StateLayout& from,
                                           const StateLayout& to) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ParameterId> ids,
                           MatchByName(from.model(), to.model()));
  std::vector<Move> moves;
  for (int64_t rank = 0; rank < to.ranks(); ++rank) {
    Append(from, to, Rank(rank), ids, moves);
  }
  return moves;
}

}  // namespace tessera::zero3
