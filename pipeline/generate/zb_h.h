// ZB-H1 and ZB-H2: 1F1B whose backward is split, so that the gradients of the
// weights fill the bubble (arXiv 2401.10241, the handcrafted schedules).
//
//   GenerateZbH1({.ranks = 4, .chunks = 1, .microbatches = 8});
//
// Rank r does u forwards before its first backward-input, then forward,
// backward-input and backward-weight in turn, the last one a lag of l
// micro-batches behind:
//             u               l     activations held, u + l at most
//   zb_h1     p - r           r     p
//   zb_h2     2 (p - r) - 1   2 r   2 p - 1
// The bubbles are those of unit times (F = I = W) and m >= u on rank 0. They
// are a rank's: from its first action to its last, without the wait for the
// first activation, as the paper counts (no synchronisation at the end of a
// step).
#ifndef TESSERA_PIPELINE_GENERATE_ZB_H_H_
#define TESSERA_PIPELINE_GENERATE_ZB_H_H_

#include "absl/status/statusor.h"
#include "pipeline/generate/shape.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// Bubble (p - 1) (F + I - W); every rank holds min(p, m) activations, 1F1B's on
// rank 0. Any ranks and micro-batches, 1 chunk. InvalidArgument as CheckShape.
absl::StatusOr<Schedule> GenerateZbH1(const PipelineShape& shape);

// No bubble; every rank holds min(2 p - 1, m) activations. Otherwise the same.
absl::StatusOr<Schedule> GenerateZbH2(const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_ZB_H_H_
