// Collectives over tokens in chunks, which overlap communication with
// computation: TokenChunks, ChunkedGather and ChunkedSums.
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
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

// Divides every rank's tokens into several chunks, so that some are
// communicated while others are computed.
//
//   const TokenChunks chunks(*Partition::Balanced(10, 2), 2);
//   chunks.TokensOf(0, 1);    // {5, 8}: chunk 0 of rank 1
//   chunks.SizesOf(0);        // 3, 3: what a collective of chunk 0 moves
//   chunks.RowsOf(1, 1);      // {8, 10}
//
// If memory is ordered by chunk and within a chunk by rank, each chunk is the
// buffer of one all-gather or reduce-scatter; RowsOf returns the rows in that
// order. Pure arithmetic.
class TokenChunks {
 public:
  // Makes `chunks` chunks, but at least one and at most the largest number of
  // tokens of a rank. The chunks of a rank differ by at most one token.
  TokenChunks(const Partition& tokens, int64_t chunks);

  const Partition& tokens() const { return tokens_; }
  int64_t count() const { return count_; }

  // The tokens of a chunk and rank: TokensOf returns indices among all tokens,
  // LocalOf among the tokens of the rank. `chunk` is in [0, count()), `rank` in
  // [0, tokens().parts()).
  IndexRange TokensOf(int64_t chunk, int64_t rank) const;
  IndexRange LocalOf(int64_t chunk, int64_t rank) const;

  // The number of tokens in a chunk, by rank.
  std::vector<int64_t> SizesOf(int64_t chunk) const;

  // The rows of a chunk, or of one rank's part of it, in memory that is ordered
  // by chunk and then by rank.
  IndexRange RowsOf(int64_t chunk) const;
  IndexRange RowsOf(int64_t chunk, int64_t rank) const;

 private:
  Partition tokens_;
  int64_t count_;
};

// Gathers the ranks' tokens in chunks and processes each on arrival, so that
// the computation on one chunk overlaps the communication of the next.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       ChunkedGather gather,
//       ChunkedGather::Start(group, chunks, x, all_x));
//   TESSERA_RETURN_IF_ERROR(
//       gather.ForEach([&](IndexRange tokens, ConstTensorView rows) {
//         return Multiply(...);
//       }));
//
// This is the all-gather + GEMM of Wang et al., Overlap Communication with
// Dependent Computation via Decomposition, ASPLOS 2023, but with sub-ranges of
// an all-gather instead of steps of a ring, so that it uses each engine's own
// all-gather. Move-only. The destructor waits for operations in progress.
class ChunkedGather {
 public:
  // Processes `rows` [tokens.size(), ...], which are rows `tokens` of all
  // tokens.
  using Visit =
      absl::FunctionRef<absl::Status(IndexRange tokens, ConstTensorView rows)>;

  // Starts to gather `mine` into `buffer`, which holds all tokens (in the order
  // of TokenChunks::RowsOf); both must stay valid. A collective, except with
  // one rank. InvalidArgument if the shapes do not match the tokens.
  static absl::StatusOr<ChunkedGather> Start(const TensorGroup& group,
                                             const TokenChunks& chunks,
                                             ConstTensorView mine,
                                             TensorView buffer);
  // For tokens that are all local: a single visit and no communication.
  static ChunkedGather Here(ConstTensorView all);

  ~ChunkedGather();
  ChunkedGather(ChunkedGather&&) = default;
  ChunkedGather& operator=(ChunkedGather&&) = delete;

  // With one chunk, visits all tokens after their arrival. Otherwise visits
  // this rank's own tokens first, then those of the other ranks, chunk by chunk
  // as they arrive. Visits each token once. Stops at the first error and
  // returns it. Call it once.
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

// Computes rows chunk by chunk; the sums of a chunk over the ranks are in
// flight while the next chunk is computed.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       ChunkedSums sums,
//       ChunkedSums::Scatter(group, chunks, buffer, y,
//           [&](IndexRange tokens, TensorView rows) {
//             return Multiply(...);
//           }));
//   ...                          // the last chunks are still in flight
//   TESSERA_RETURN_IF_ERROR(sums.Wait());
//
// This is the GEMM + reduce-scatter of Wang et al., Overlap Communication with
// Dependent Computation via Decomposition, ASPLOS 2023, but with sub-ranges of
// a reduce-scatter instead of steps of a ring, so that the sums are in the
// order of ranks, as without chunks, and have the same bits as the engine's
// sums. Move-only. The destructor waits for operations in progress.
class ChunkedSums {
 public:
  // Sets `rows` [tokens.size(), ...] to this rank's addends of `tokens`.
  using Compute =
      absl::FunctionRef<absl::Status(IndexRange tokens, TensorView rows)>;

  // mine = this rank's tokens of the sum of all ranks' results, by way of
  // `buffer`, which holds all tokens; both must stay valid. A collective.
  // Returns when all chunks are computed and their sums started.
  // InvalidArgument if the shapes do not match the tokens.
  static absl::StatusOr<ChunkedSums> Scatter(const TensorGroup& group,
                                             const TokenChunks& chunks,
                                             TensorView buffer, TensorView mine,
                                             Compute compute);

  // x = the sum, on every rank, with rows in `chunks` (at least 1) chunks.
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

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_CHUNKED_COLLECTIVES_H_
