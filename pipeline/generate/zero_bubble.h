// Zero-bubble schedules: ZB-H1, ZB-H2 and ZB-V. The backward pass is split, so
// that the gradients of the weights fill the bubble (arXiv 2401.10241).
#ifndef TESSERA_PIPELINE_GENERATE_ZERO_BUBBLE_H_
#define TESSERA_PIPELINE_GENERATE_ZERO_BUBBLE_H_

#include "absl/status/statusor.h"
#include "pipeline/generate/draft.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// ZB-H1 and ZB-H2: 1F1B whose backward is split, so that the gradients of the
// weights fill the bubble (arXiv 2401.10241, the handcrafted schedules).
//
//   GenerateZbH1({.ranks = 4, .chunks = 1, .microbatches = 8});
//
// Rank r does u forwards before its first backward-input, then forward,
// backward-input and backward-weight in turn, with the backward-weight l
// micro-batches behind:
//             u               l     activations held, u + l at most
//   zb_h1     p - r           r     p
//   zb_h2     2 (p - r) - 1   2 r   2 p - 1
// The stated bubbles assume unit times (F = I = W) and m >= u on rank 0. As in
// the paper, they are counted per rank from its first action to its last,
// without the wait for the first activation and without synchronisation at the
// end of a step.
//
// ZB-H1: bubble (p - 1) (F + I - W); every rank holds min(p, m) activations, as
// many as 1F1B on rank 0. Requires 1 chunk; any numbers of ranks and
// micro-batches. InvalidArgument as for CheckShape.
absl::StatusOr<Schedule> GenerateZbH1(const PipelineShape& shape);

// ZB-H2: no bubble; every rank holds min(2 p - 1, m) activations. Otherwise
// like ZB-H1.
absl::StatusOr<Schedule> GenerateZbH2(const PipelineShape& shape);

// ZB-V: no bubble with 1F1B's memory. The two chunks of each rank form a V, so
// that a micro-batch turns on the last rank and ends its forward on the rank
// where it started (arXiv 2401.10241, section 6).
//
//   GenerateZbV({.ranks = 4, .chunks = 2, .microbatches = 8});
//
// No bubble on any rank (from its first action to its last) with unit times (F
// = I = W) and m >= 2 p - 1; every rank holds at most 2 p activations of a
// chunk, as many as 1F1B on rank 0. Requires 2 chunks; any numbers of ranks and
// micro-batches (fewer than 2 p - 1 use the pattern of 2 p - 1 without the
// extra ones). InvalidArgument as for CheckShape.
absl::StatusOr<Schedule> GenerateZbV(const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_ZERO_BUBBLE_H_
