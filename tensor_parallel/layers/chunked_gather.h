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
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_CHUNKED_GATHER_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_CHUNKED_GATHER_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/token_chunks.h"
#include "tensor_parallel/sharding/index_range.h"

namespace tessera::tensor_parallel {

// Move-only. Waits for what is under way before it goes.
class ChunkedGather {
 public:
  // Rows [tokens.size(), ...] of which all tokens are `tokens`.
  using Visit =
      absl::FunctionRef<absl::Status(IndexRange tokens, ConstTensorView rows)>;

  // Starts the gathering of `mine` to `buffer`, which has room for all tokens
  // (in the order of TokenChunks::RowsOf); both must stay. A collective, but
  // for one rank. InvalidArgument where the shapes are not those of the tokens.
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

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_CHUNKED_GATHER_H_
