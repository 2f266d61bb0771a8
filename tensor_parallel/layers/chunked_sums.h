// ChunkedSums: rows that are computed chunk by chunk, each chunk's sums over
// the ranks on their way while the next one is computed.
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
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_CHUNKED_SUMS_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_CHUNKED_SUMS_H_

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
class ChunkedSums {
 public:
  // Sets the addends of `tokens` in rows [tokens.size(), ...].
  using Compute =
      absl::FunctionRef<absl::Status(IndexRange tokens, TensorView rows)>;

  // mine = this rank's tokens of the sum of what all ranks compute, by way of
  // `buffer`, which has room for all tokens; both must stay. A collective.
  // Returns when everything is computed and started. InvalidArgument where the
  // shapes are not those of the tokens.
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

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_CHUNKED_SUMS_H_
