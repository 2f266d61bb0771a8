// Schedules that alternate one forward and one backward pass: 1F1B, interleaved
// 1F1B, and the zero-bubble schedules ZB-H1 and ZB-H2.
#ifndef TESSERA_PIPELINE_GENERATE_ONE_F_ONE_B_H_
#define TESSERA_PIPELINE_GENERATE_ONE_F_ONE_B_H_

#include "absl/status/statusor.h"
#include "pipeline/generate/draft.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// 1F1B: after a warm-up every rank alternates one forward and one backward
// (PipeDream-Flush, arXiv 2006.09503; arXiv 2104.04473, section 2.2.1).
//
//   GenerateOneFOneB({.ranks = 4, .chunks = 1, .microbatches = 8});
//
// Named "1f1b". Rank r warms up with min(p - 1 - r, m) forwards. Bubble (p - 1)
// (F + B), GPipe's; rank r holds min(p - r, m) activations. Requires 1 chunk;
// any numbers of ranks and micro-batches, even fewer micro-batches than ranks.
// InvalidArgument as for CheckShape.
absl::StatusOr<Schedule> GenerateOneFOneB(const PipelineShape& shape);

// Interleaved 1F1B: 1F1B over several chunks of the model on each rank,
// alternating in groups of p micro-batches (arXiv 2104.04473, section 2.2.2).
//
//   GenerateInterleavedOneFOneB({.ranks = 4, .chunks = 2, .microbatches = 8});
//
// Named "interleaved_1f1b". Chunks are mapped in a loop (StageMap::Loop). Rank
// r warms up with w = 2 (p - 1 - r) + (chunks - 1) p forwards and holds min(w +
// 1, chunks x m) activations of a chunk; with 1 chunk it is 1F1B, with 1F1B's
// warm-up. If p divides m, the bubble is (p - 1) (F + B) of one chunk: 1F1B's
// bubble divided by the number of chunks.
//
// Any counts. The paper requires that p divides m; other numbers use the
// pattern of the next multiple of p without the extra micro-batches, which
// cannot deadlock and needs no more memory. InvalidArgument as for CheckShape.
absl::StatusOr<Schedule> GenerateInterleavedOneFOneB(
    const PipelineShape& shape);

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

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_ONE_F_ONE_B_H_
