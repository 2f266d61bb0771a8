// Schedules that alternate one forward and one backward pass: 1F1B, interleaved
// 1F1B, and the zero-bubble schedules ZB-H1 and ZB-H2.
#ifndef TESSERA_PIPELINE_GENERATE_ONE_F_ONE_B_H_
#define TESSERA_PIPELINE_GENERATE_ONE_F_ONE_B_H_

#include "absl/status/statusor.h"
#include "pipeline/generate/draft.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// 1F1B: after a warm-up every rank does one forward, one backward in turn
// (PipeDream-Flush, arXiv 2006.09503; arXiv 2104.04473, section 2.2.1).
//
//   GenerateOneFOneB({.ranks = 4, .chunks = 1, .microbatches = 8});
//
// Named "1f1b". Rank r warms up with min(p - 1 - r, m) forwards. Bubble
// (p - 1) (F + B), GPipe's; rank r holds min(p - r, m) activations. Any ranks
// and micro-batches, fewer than ranks too; 1 chunk. InvalidArgument as
// CheckShape.
absl::StatusOr<Schedule> GenerateOneFOneB(const PipelineShape& shape);

// Interleaved 1F1B: 1F1B over several chunks of the model on each rank,
// alternating in groups of p micro-batches (arXiv 2104.04473, section 2.2.2).
//
//   GenerateInterleavedOneFOneB({.ranks = 4, .chunks = 2, .microbatches = 8});
//
// Named "interleaved_1f1b". Chunks lie in a loop (StageMap::Loop). Rank r warms
// up with w = 2 (p - 1 - r) + (chunks - 1) p forwards and holds
// min(w + 1, chunks x m) activations of a chunk; with 1 chunk it is 1F1B, with
// 1F1B's warm-up. Where p divides m the bubble is (p - 1) (F + B) of one chunk:
// 1F1B's, divided by the chunks.
//
// Any counts. The paper requires that p divides m; other numbers use the
// pattern of the next multiple of p without the extra micro-batches, which
// cannot deadlock and needs no more memory. InvalidArgument as CheckShape.
absl::StatusOr<Schedule> GenerateInterleavedOneFOneB(
    const PipelineShape& shape);

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
//
// Bubble (p - 1) (F + I - W); every rank holds min(p, m) activations, 1F1B's on
// rank 0. Any ranks and micro-batches, 1 chunk. InvalidArgument as CheckShape.
absl::StatusOr<Schedule> GenerateZbH1(const PipelineShape& shape);

// No bubble; every rank holds min(2 p - 1, m) activations. Otherwise the same.
absl::StatusOr<Schedule> GenerateZbH2(const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_ONE_F_ONE_B_H_
