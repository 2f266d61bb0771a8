// The generators of schedules with two chunks per rank in a V, made of a
// repeated building block (BuildingBlock, RepeatBlock): V-Half and V-Min. ZB-V,
// also a V, is in zero_bubble.h.
#ifndef TESSERA_PIPELINE_GENERATE_V_SHAPED_H_
#define TESSERA_PIPELINE_GENERATE_V_SHAPED_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "pipeline/generate/draft.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// A building block: the actions of all ranks for one micro-batch of two chunks
// in a V, repeated every 6 steps (arXiv 2405.15362).
//
//   RepeatBlock("v_min", {1, 1, 1, 1}, shape);
//
// A micro-batch passes the ranks four times, in unit steps: forward down (rank
// 0 to p - 1) and up, backward-input down and up. The block has the number of
// steps between neighbouring ranks in each pass. An activation lives from its
// forward to its backward; a rank always holds a sixth of the sum of the
// lifetimes in both chunks. Backward-weights fill the free steps.
struct BuildingBlock {
  int64_t forward_down = 1;
  int64_t forward_up = 1;
  int64_t backward_down = 1;
  int64_t backward_up = 1;
};

// Repeats the block for each micro-batch, with delays between the passes such
// that no two actions of a rank collide. Chooses the delays with the fewest
// activations and, among these, the fewest steps. Only the order within ranks
// is used: where the block has gaps, ranks need not wait. Unimplemented if
// there are no such delays (there are for the blocks used here);
// InvalidArgument as for CheckShape.
absl::StatusOr<Schedule> RepeatBlock(std::string_view name,
                                     const BuildingBlock& block,
                                     const PipelineShape& shape);

// V-Half: half of 1F1B's activations (arXiv 2405.15362).
//
//   GenerateVHalf({.ranks = 4, .chunks = 2, .microbatches = 8});
//
// The building block has 2 steps between ranks down and 1 up. Every rank holds
// at most p + 1 activations of a chunk if p is odd, p + 2 if it is even (1F1B
// holds 2 p); the bubble with unit times (F = I = W) is at most 7 / 2 (p - 1) +
// 3 / 2 if m >= p (1F1B: 6 (p - 1)). If times differ, each repetition of the
// block may wait a little, as the paper says: the bubble then grows with the
// micro-batches.
//
// Requires 2 chunks; any numbers of ranks and micro-batches. InvalidArgument as
// for CheckShape.
absl::StatusOr<Schedule> GenerateVHalf(const PipelineShape& shape);

// V-Min: a third of 1F1B's activations, the minimum for a V (arXiv 2405.15362).
//
//   GenerateVMin({.ranks = 4, .chunks = 2, .microbatches = 8});
//
// The building block has 1 step between ranks in all passes. Every rank holds
// at most 2 p / 3 + 2 activations of a chunk, rounded up (1F1B holds 2 p); the
// bubble with unit times (F = I = W) is at most 4 (p - 1) + 1 (1F1B: 6 (p -
// 1)). If times differ, each repetition of the block waits, as the paper says:
// the bubble then grows with the micro-batches.
//
// Requires 2 chunks; any numbers of ranks and micro-batches. InvalidArgument as
// for CheckShape.
absl::StatusOr<Schedule> GenerateVMin(const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_V_SHAPED_H_
