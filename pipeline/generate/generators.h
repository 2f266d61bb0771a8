// The generators of schedules. Each takes the numbers of ranks p, of chunks (of
// stages on each rank) and of micro-batches m:
//
//   GenerateOneFOneB({.ranks = 4, .chunks = 1, .microbatches = 8});
//
// and returns InvalidArgument as for CheckShape. F and B are the times of a
// forward and a backward of one stage; I and W those of the two parts of a
// backward, the gradients of inputs and of weights. generate.h finds them by
// name.
#ifndef TESSERA_PIPELINE_GENERATE_GENERATORS_H_
#define TESSERA_PIPELINE_GENERATE_GENERATORS_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "pipeline/generate/draft.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// Sequential: no pipelining. One micro-batch at a time goes forward through all
// stages and back; the baseline for other schedules.
//
// Stages are distributed round-robin over the ranks (StageMap::Loop). Takes
// chunks p m (F + B); holds `chunks` activations on each rank. Any counts.
absl::StatusOr<Schedule> GenerateSequential(const PipelineShape& shape);

// GPipe: all micro-batches forward, then all of them backward (arXiv
// 1811.06965, figure 2).
//
// Backward goes from the last micro-batch to the first, as in figure 2 of the
// paper: the activations made last are the first to be freed. Bubble (p - 1) (F
// + B); holds m activations. Requires 1 chunk; any numbers of ranks and
// micro-batches.
absl::StatusOr<Schedule> GenerateGpipe(const PipelineShape& shape);

// Looped breadth-first: all micro-batches pass a chunk of the model before any
// enters the rank's next chunk (arXiv 2211.05953, section 4).
//
// A chunk's parameters are used in only two runs, one forward and one backward,
// which suits fully sharded data parallelism: one gather per run.
//
// Chunks are mapped in a loop (StageMap::Loop); backward goes from the last
// chunk to the first, micro-batches in order of arrival. Bubble (p - 1) (F + B)
// of one chunk if m >= p; holds chunks x m activations. Any counts.
absl::StatusOr<Schedule> GenerateLoopedBfs(const PipelineShape& shape);

// Round-robin: micro-batches go round the ranks depth-first, all forward, then
// all backward.
//
// Stages are distributed round-robin over the ranks (StageMap::Loop). Groups of
// p micro-batches fill the ring and go round it, chunk by chunk, before the
// next group enters: the depth-first order of arXiv 2211.05953, without
// interleaved 1F1B's alternation of forward and backward. With 1 chunk it is
// GPipe.
//
// Backward mirrors forward. Bubble (p - 1) (F + B) of one chunk if p divides m;
// holds chunks x m activations. Any counts.
absl::StatusOr<Schedule> GenerateRoundRobin(const PipelineShape& shape);

// 1F1B: after a warm-up every rank alternates one forward and one backward
// (PipeDream-Flush, arXiv 2006.09503; arXiv 2104.04473, section 2.2.1).
//
// Named "1f1b". Rank r warms up with min(p - 1 - r, m) forwards. Bubble (p - 1)
// (F + B), GPipe's; rank r holds min(p - r, m) activations. Requires 1 chunk;
// any numbers of ranks and micro-batches, even fewer micro-batches than ranks.
absl::StatusOr<Schedule> GenerateOneFOneB(const PipelineShape& shape);

// Interleaved 1F1B: 1F1B over several chunks of the model on each rank,
// alternating in groups of p micro-batches (arXiv 2104.04473, section 2.2.2).
//
// Named "interleaved_1f1b". Chunks are mapped in a loop (StageMap::Loop). Rank
// r warms up with w = 2 (p - 1 - r) + (chunks - 1) p forwards and holds min(w +
// 1, chunks x m) activations of a chunk; with 1 chunk it is 1F1B, with 1F1B's
// warm-up. If p divides m, the bubble is (p - 1) (F + B) of one chunk: 1F1B's
// bubble divided by the number of chunks.
//
// Any counts. The paper requires that p divides m; other numbers use the
// pattern of the next multiple of p without the extra micro-batches, which
// cannot deadlock and needs no more memory.
absl::StatusOr<Schedule> GenerateInterleavedOneFOneB(
    const PipelineShape& shape);

// ZB-H1 and ZB-H2: 1F1B whose backward is split, so that the gradients of the
// weights fill the bubble (arXiv 2401.10241, the handcrafted schedules).
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
// micro-batches.
absl::StatusOr<Schedule> GenerateZbH1(const PipelineShape& shape);

// ZB-H2: no bubble; every rank holds min(2 p - 1, m) activations. Otherwise
// like ZB-H1.
absl::StatusOr<Schedule> GenerateZbH2(const PipelineShape& shape);

// ZB-V: no bubble with 1F1B's memory. The two chunks of each rank form a V, so
// that a micro-batch turns on the last rank and ends its forward on the rank
// where it started (arXiv 2401.10241, section 6).
//
// No bubble on any rank (from its first action to its last) with unit times (F
// = I = W) and m >= 2 p - 1; every rank holds at most 2 p activations of a
// chunk, as many as 1F1B on rank 0. Requires 2 chunks; any numbers of ranks and
// micro-batches (fewer than 2 p - 1 use the pattern of 2 p - 1 without the
// extra ones).
absl::StatusOr<Schedule> GenerateZbV(const PipelineShape& shape);

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
// there are no such delays (there are for the blocks used here).
absl::StatusOr<Schedule> RepeatBlock(std::string_view name,
                                     const BuildingBlock& block,
                                     const PipelineShape& shape);

// V-Half: half of 1F1B's activations (arXiv 2405.15362).
//
// The building block has 2 steps between ranks down and 1 up. Every rank holds
// at most p + 1 activations of a chunk if p is odd, p + 2 if it is even (1F1B
// holds 2 p); the bubble with unit times (F = I = W) is at most 7 / 2 (p - 1) +
// 3 / 2 if m >= p (1F1B: 6 (p - 1)). If times differ, each repetition of the
// block may wait a little, as the paper says: the bubble then grows with the
// micro-batches.
//
// Requires 2 chunks; any numbers of ranks and micro-batches.
absl::StatusOr<Schedule> GenerateVHalf(const PipelineShape& shape);

// V-Min: a third of 1F1B's activations, the minimum for a V (arXiv 2405.15362).
//
// The building block has 1 step between ranks in all passes. Every rank holds
// at most 2 p / 3 + 2 activations of a chunk, rounded up (1F1B holds 2 p); the
// bubble with unit times (F = I = W) is at most 4 (p - 1) + 1 (1F1B: 6 (p -
// 1)). If times differ, each repetition of the block waits, as the paper says:
// the bubble then grows with the micro-batches.
//
// Requires 2 chunks; any numbers of ranks and micro-batches.
absl::StatusOr<Schedule> GenerateVMin(const PipelineShape& shape);

// DualPipe: micro-batches enter at both ends, and messages of one direction
// overlap with computations of the other (arXiv 2412.19437, section 3.2.1).
//
// Ranks r and p - 1 - r hold the same two stages (StageMap::TwoWay); the first
// half of the micro-batches (the larger half if their number is odd) enters at
// rank 0, the second half at rank p - 1. A forward and a backward run as a pair
// (Action::with_next) in the steady part. Every rank holds at most p + 1
// activations; the bubble, for an even m >= 2 p, is the paper's (p / 2 - 1)
// (F&B + B - 3 W), where F&B is the time of a pair.
//
// Requires an even number of ranks and 1 chunk; any number of micro-batches.
// The paper requires an even number of micro-batches, at least 2 p: other
// numbers use the pattern of the next such number without the extra ones.
absl::StatusOr<Schedule> GenerateDualPipe(const PipelineShape& shape);

// DualPipeV: DualPipe cut in half. Each rank holds the two stages that a pair
// of DualPipe's ranks held, in a V, so that no parameters are held twice (the
// "cut-in-half" of arXiv 2412.19437's DualPipe, as published with its code).
//
// A forward and a backward run as a pair (Action::with_next) in the steady
// part. Every rank holds at most 2 p + 1 activations of a chunk. Requires 2
// chunks; any numbers of ranks and micro-batches (fewer than 2 p use the
// pattern of 2 p without the extra ones).
absl::StatusOr<Schedule> GenerateDualPipeV(const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_GENERATORS_H_
