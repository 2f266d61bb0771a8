// Helpers for tests of blocks: meshes, and the parts of whole tensors on their
// ranks.
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_TESTING_MESH_CASE_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_TESTING_MESH_CASE_H_

#include <cstdint>
#include <functional>
#include <ostream>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor.h"
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

struct MeshCase {
  int64_t tp = 1;
  int64_t cp = 1;
  bool sequence_parallel = false;
  DType dtype = DType::kF64;
  bool zigzag = false;
  int64_t sequences = 2;
  int64_t length = 7;

  SequenceLayout layout() const;
  // Relative to the largest magnitude of a tensor.
  double tolerance() const;
};

std::ostream& operator<<(std::ostream& os, const MeshCase& c);

// tp 1, 2, 3, 4 and 8 times cp 1, 2 and 4, up to 8 ranks, with and without
// sequence parallelism, in f64, f32 and bf16, alternately contiguous and
// zigzag; also empty batches, and batches with fewer positions than ranks.
std::vector<MeshCase> AllMeshCases();

// The function that each rank executes, with its groups, which have separate
// ops.
using MeshBody = std::function<absl::Status(const TensorGroup& tensor,
                                            const TensorGroup& context)>;

// Executes `body` on tp * cp ranks, which are threads, and returns the statuses
// by rank.
std::vector<absl::Status> RunMesh(const MeshCase& c, const MeshBody& body);

// The rows of the rank's tokens in [sequences * length, ...]: all its
// positions, or under sequence parallelism its part of them (unless
// `all_tokens`).
std::vector<IndexRange> RowsOf(const MeshCase& c, int64_t tensor_rank,
                               int64_t context_rank, bool all_tokens);

// Sets the parameters to numbers that depend on their index in `parameters` but
// not on the mesh, rounded to `dtype` if it is narrower than the parameters'
// type. The host waits.
absl::Status FillWeights(Ops& ops, std::span<Parameter* const> parameters,
                         DType dtype);

// The numbers of RandomTensor, rounded to `narrow`, in `dtype`.
absl::StatusOr<Tensor> RandomRounded(DType dtype, DType narrow,
                                     std::span<const int64_t> shape,
                                     uint64_t stream);

// `values`, of any type, converted to `dtype`.
absl::StatusOr<Tensor> CastTo(DType dtype, ConstTensorView values);

// The part of the whole tensor that the parameter holds.
absl::StatusOr<Tensor> PartOf(const Parameter& parameter,
                              ConstTensorView whole);

// OK if `actual` equals `expected`, a part of `whole`, within `tolerance` times
// the largest magnitude of `whole`; otherwise InternalError.
absl::Status ExpectNearPart(std::string_view what, ConstTensorView actual,
                            ConstTensorView expected, ConstTensorView whole,
                            double tolerance);

// OK if both have the same bits.
absl::Status ExpectSameBits(std::string_view what, ConstTensorView actual,
                            ConstTensorView expected);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_TESTING_MESH_CASE_H_
