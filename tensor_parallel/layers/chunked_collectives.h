// TokenChunks: every rank's tokens in several chunks, so that some are
// communicated while others are computed.
//
//   const TokenChunks chunks(*Partition::Balanced(10, 2), 2);
//   chunks.TokensOf(0, 1);    // {5, 8}: chunk 0 of rank 1
//   chunks.SizesOf(0);        // 3, 3: what a collective of chunk 0 moves
//   chunks.RowsOf(1, 1);      // {8, 10}
//
// In memory with chunk after chunk, and in each chunk the ranks' parts one
// after another, a chunk is what one all-gather fills or one reduce-scatter
// reads: RowsOf returns a part's place there. Pure arithmetic.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_CHUNKED_COLLECTIVES_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_CHUNKED_COLLECTIVES_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/sharding/fused_partition.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

class TokenChunks {
 public:
  // Makes `chunks` chunks, but at least one and at most as many as the largest
  // rank has tokens. Chunks of a rank differ by at most one token.
  TokenChunks(const Partition& tokens, int64_t chunks);

  const Partition& tokens() const { return tokens_; }
  int64_t count() const { return count_; }

  // `chunk` is in [0, count()), `rank` in [0, tokens().parts()).
  // Among all tokens, and among those of the rank.
  IndexRange TokensOf(int64_t chunk, int64_t rank) const;
  IndexRange LocalOf(int64_t chunk, int64_t rank) const;

  // By rank.
  std::vector<int64_t> SizesOf(int64_t chunk) const;

  // In memory by chunk, then rank.
  IndexRange RowsOf(int64_t chunk) const;
  IndexRange RowsOf(int64_t chunk, int64_t rank) const;

 private:
  Partition tokens_;
  int64_t count_;
};

// ChunkedGather: the ranks' tokens, gathered in chunks and worked on as they
// come, so that the work on one chunk hides the way of the next.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       ChunkedGather gather,
//       ChunkedGather::Start(group, chunks, x, all_x));
//   TESSERA_RETURN_IF_ERROR(gather.ForEach(
//       [&](IndexRange tokens, ConstTensorView rows) { return Multiply(...);
//       }));
//
// The all-gather + GEMM of Wang et al., Overlap Communication with Dependent
// Computation via Decomposition, ASPLOS 2023, by sub-ranges of an all-gather
// instead of steps of a ring: each engine's own all-gather then does it.

// Move-only. The destructor waits for operations in progress.
class ChunkedGather {
 public:
  // Rows [tokens.size(), ...] of which all tokens are `tokens`.
  using Visit =
      absl::FunctionRef<absl::Status(IndexRange tokens, ConstTensorView rows)>;

  // Starts to gather `mine` into `buffer`, which holds all tokens (in the order
  // of TokenChunks::RowsOf); both must stay valid. A collective, except with
  // one rank. InvalidArgument if the shapes do not match the tokens.
  static absl::StatusOr<ChunkedGather> Start(const TensorGroup& group,
                                             const TokenChunks& chunks,
                                             ConstTensorView mine,
                                             TensorView buffer);
  // All tokens are here: one visit, and nothing to gather.
  static ChunkedGather Here(ConstTensorView all);

  ~ChunkedGather();
  ChunkedGather(ChunkedGather&&) = default;
  ChunkedGather& operator=(ChunkedGather&&) = delete;

  // One chunk: visits all tokens when they are there. Else this rank's own
  // tokens, which need not travel; then those of the others, chunk by chunk as
  // they come. Each token once; nothing is visited after an error, which is
  // returned. Call it once.
  absl::Status ForEach(Visit visit);

 private:
  ChunkedGather(int64_t rank, const TokenChunks& chunks, ConstTensorView mine,
                ConstTensorView buffer)
      : rank_(rank), chunks_(chunks), mine_(mine), buffer_(buffer) {}

  absl::Status VisitChunk(int64_t chunk, Visit visit) const;

  int64_t rank_;
  TokenChunks chunks_;
  ConstTensorView mine_;
  ConstTensorView buffer_;
  std::vector<Pending> pending_;  // By chunk.
};

// ChunkedSums: rows that are computed chunk by chunk, each chunk's sums over
// the ranks in flight while the next one is computed.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       ChunkedSums sums,
//       ChunkedSums::Scatter(group, chunks, buffer, y,
//           [&](IndexRange tokens, TensorView rows) { return Multiply(...);
//           }));
//   ...                                          // the last ones still go
//   TESSERA_RETURN_IF_ERROR(sums.Wait());
//
// The GEMM + reduce-scatter of Wang et al., Overlap Communication with
// Dependent Computation via Decomposition, ASPLOS 2023, by sub-ranges of a
// reduce-scatter instead of steps of a ring: the sums are in the order of
// ranks, as without chunks, and have the bits that the engine's sums have.

// Move-only. The destructor waits for operations in progress.
class ChunkedSums {
 public:
  // Sets the addends of `tokens` in rows [tokens.size(), ...].
  using Compute =
      absl::FunctionRef<absl::Status(IndexRange tokens, TensorView rows)>;

  // mine = this rank's tokens of the sum of all ranks' results, through
  // `buffer`, which holds all tokens; both must stay valid. A collective.
  // Returns when everything is computed and started. InvalidArgument if the
  // shapes do not match the tokens.
  static absl::StatusOr<ChunkedSums> Scatter(const TensorGroup& group,
                                             const TokenChunks& chunks,
                                             TensorView buffer, TensorView mine,
                                             Compute compute);

  // x = the sum, on every rank: rows in `chunks` (at least 1) chunks.
  static absl::StatusOr<ChunkedSums> SumOver(const TensorGroup& group,
                                             int64_t chunks, TensorView x,
                                             Compute compute);

  ~ChunkedSums();
  ChunkedSums(ChunkedSums&&) = default;
  ChunkedSums& operator=(ChunkedSums&&) = delete;

  absl::Status Wait();

 private:
  ChunkedSums() = default;

  std::vector<Pending> pending_;
};

// OutputGather: assembles the outputs of a column-parallel layer, of which each
// rank has some, on every rank.
//
//   OutputGather gather(group, layer.partition());
//   TESSERA_RETURN_IF_ERROR(gather.Gather(my_y, y));
//   TESSERA_RETURN_IF_ERROR(gather.Slice(y_gradient, my_y_gradient));
//
// Outputs that several ranks hold (kv heads, if there are fewer than ranks) are
// taken from the first of these ranks, and only it gets their gradient: the
// others get zeros, so that sums over the ranks count it once.

// Returns true if no earlier rank holds the same outputs of the part.
bool IsFirstHolder(const FusedPartition& partition, size_t part, int64_t rank);

class OutputGather {
 public:
  OutputGather(const TensorGroup& group, const FusedPartition& partition)
      : group_(group), partition_(partition) {}

  // Sets y [tokens, partition.size()] from `local` [tokens, the rank's
  // outputs], which is contiguous. A collective: an all-gather of y's bytes
  // (and of outputs that several ranks hold).
  absl::Status Gather(ConstTensorView local, TensorView y);

  // The rank's outputs of the gradient of y. Moves nothing.
  absl::Status Slice(ConstTensorView y_gradient, TensorView local) const;

 private:
  absl::Status Place(int64_t rank, ConstTensorView local, TensorView y) const;

  TensorGroup group_;
  FusedPartition partition_;
  ReusableTensor all_ = group_.Working("gathered columns");
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_CHUNKED_COLLECTIVES_H_
