// Schedules that alternate one forward and one backward pass: 1F1B and
// interleaved 1F1B.
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

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_ONE_F_ONE_B_H_
