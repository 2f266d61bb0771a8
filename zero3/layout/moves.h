// Moves: the copies that convert state from one layout to another, for example
// to load a checkpoint of 8 ranks into 6.
//
//   TESSERA_ASSIGN_OR_RETURN(const std::vector<Move> moves,
//                            MovesTo(saved, layout, Rank(2)));
//   for (const Move& move : moves) {
//     copy move.length elements from move.from.offset of rank move.from.rank
//     to move.to.offset of rank 2;
//   }
//
// Parameters are matched by name, so the models may list them in other orders,
// freeze others and use other types. Together the moves write each element of
// each parameter exactly once and no padding.
#ifndef TESSERA_ZERO3_LAYOUT_MOVES_H_
#define TESSERA_ZERO3_LAYOUT_MOVES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/rank.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/model_parameters.h"

namespace tessera::zero3 {

struct Move {
  // Numbered as in the target's model. The caller decides which state besides
  // the value to move: a frozen parameter has no moments.
  ParameterId parameter = {};
  // The first element moved.
  int64_t element = 0;
  LocalIndex from = {};
  LocalIndex to = {};
  int64_t length = 0;

  friend bool operator==(const Move&, const Move&) = default;
};

// The moves into one rank of `to`, in ascending order of its offsets.
// InvalidArgument if there is no such rank, or if a parameter of one model is
// missing from the other or has another number of elements there; the message
// names the parameter.
absl::StatusOr<std::vector<Move>> MovesTo(const StateLayout& from,
                                          const StateLayout& to,
                                          topology::Rank rank);

// The same for every rank of `to`, one after the other.
absl::StatusOr<std::vector<Move>> AllMoves(const StateLayout& from,
                                           const StateLayout& to);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_LAYOUT_MOVES_H_
