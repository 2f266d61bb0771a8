// Schedules without interleaved forward and backward passes of different
// micro-batches: sequential, GPipe, looped breadth-first and round robin.
#ifndef TESSERA_PIPELINE_GENERATE_GPIPE_H_
#define TESSERA_PIPELINE_GENERATE_GPIPE_H_

#include "absl/status/statusor.h"
#include "pipeline/generate/draft.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// Sequential: no pipelining. One micro-batch at a time goes forward through all
// stages and back; the baseline for other schedules.
//
//   GenerateSequential({.ranks = 4, .chunks = 1, .microbatches = 8});
//
// Stages are distributed round-robin over the ranks (StageMap::Loop). Takes
// chunks p m (F + B), where F and B are the times of one stage; holds `chunks`
// activations on each rank. Any counts. InvalidArgument as for CheckShape.
absl::StatusOr<Schedule> GenerateSequential(const PipelineShape& shape);

// GPipe: all micro-batches forward, then all of them backward (arXiv
// 1811.06965, figure 2).
//
//   GenerateGpipe({.ranks = 4, .chunks = 1, .microbatches = 8});
//
// Backward goes from the last micro-batch to the first, as in figure 2 of the
// paper: the activations made last are the first to be freed. Bubble (p - 1) (F
// + B); holds m activations. Requires 1 chunk; any numbers of ranks and
// micro-batches. InvalidArgument as for CheckShape.
absl::StatusOr<Schedule> GenerateGpipe(const PipelineShape& shape);

// Looped breadth-first: all micro-batches pass a chunk of the model before any
// enters the rank's next chunk (arXiv 2211.05953, section 4).
//
//   GenerateLoopedBfs({.ranks = 4, .chunks = 2, .microbatches = 8});
//
// A chunk's parameters are used in only two runs, one forward and one backward,
// which suits fully sharded data parallelism: one gather per run.
//
// Chunks are mapped in a loop (StageMap::Loop); backward goes from the last
// chunk to the first, micro-batches in order of arrival. Bubble (p - 1) (F + B)
// of one chunk if m >= p; holds chunks x m activations. Any counts.
// InvalidArgument as for CheckShape.
absl::StatusOr<Schedule> GenerateLoopedBfs(const PipelineShape& shape);

// Round-robin: micro-batches go round the ranks depth-first, all forward, then
// all backward.
//
//   GenerateRoundRobin({.ranks = 4, .chunks = 2, .microbatches = 8});
//
// Stages are distributed round-robin over the ranks (StageMap::Loop). Groups of
// p micro-batches fill the ring and go round it, chunk by chunk, before the
// next group enters: the depth-first order of arXiv 2211.05953, without
// interleaved 1F1B's alternation of forward and backward. With 1 chunk it is
// GPipe.
//
// Backward mirrors forward. Bubble (p - 1) (F + B) of one chunk if p divides m;
// holds chunks x m activations. Any counts. InvalidArgument as for CheckShape.
absl::StatusOr<Schedule> GenerateRoundRobin(const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_GPIPE_H_
