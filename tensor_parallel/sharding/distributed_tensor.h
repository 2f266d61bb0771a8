// CopyShared: the elements that two shards of a tensor have in common.
//
//   // Out of a whole tensor, and back into it.
//   const Shard whole = WholeOf(full.shape());
//   CopyShared(whole, full.view(), mine, local.view());
//   CopyShared(mine, local.view(), whole, full.view());
//
// Slicing, packing for a collective, and unpacking are all this: a packed piece
// is the shard that it contains.
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_DISTRIBUTED_TENSOR_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_DISTRIBUTED_TENSOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/sharding/shard_spec.h"
#include "topology/mesh.h"

namespace tessera::tensor_parallel {

// The whole of a tensor as one shard.
Shard WholeOf(std::span<const int64_t> shape);

// The offset of the elements of `part` in the row-major elements of `whole`,
// which contains them; nullopt if they are not contiguous and in order there.
std::optional<int64_t> OffsetIn(const Shard& whole, const Shard& part);

// Copies the elements that `from` and `to` share. The views have the shards'
// shapes and do not share memory. InvalidArgument if a view has another shape
// or the dtypes differ; else as Copy.
absl::Status CopyShared(const Shard& from, const ConstTensorView& source,
                        const Shard& to, const TensorView& target);

// DistributedTensor: one rank's shard of a tensor on a mesh.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto w, DistributedTensor::FromFull(mesh, rank, spec, full.view()));
//   w.shape();         // of the whole tensor
//   w.local().view();  // this rank's part of it
//
// tensor_parallel/sharding/redistribute.h gathers and moves it,
// tensor_parallel/random/fill.h initialises it. A value type without
// communication.

// Move-only, as Tensor.
class DistributedTensor {
 public:
  // Uninitialised elements. InvalidArgument as ShardOf and Tensor::Create.
  static absl::StatusOr<DistributedTensor> Create(
      const topology::Mesh& mesh, topology::Rank rank, const ShardSpec& spec,
      DType dtype, std::span<const int64_t> shape,
      std::shared_ptr<MemoryResource> resource = HostMemory());

  // Wraps an existing shard. InvalidArgument if its shape is not that of the
  // rank's shard.
  static absl::StatusOr<DistributedTensor> FromLocal(
      const topology::Mesh& mesh, topology::Rank rank, const ShardSpec& spec,
      std::span<const int64_t> shape, Tensor local);

  // Copies this rank's part of a whole tensor in host memory, which is the same
  // on every rank. Along partial axes the rank at 0 gets the values, the others
  // zeros.
  static absl::StatusOr<DistributedTensor> FromFull(const topology::Mesh& mesh,
                                                    topology::Rank rank,
                                                    const ShardSpec& spec,
                                                    ConstTensorView full);

  const topology::Mesh& mesh() const { return mesh_; }
  topology::Rank rank() const { return rank_; }
  const ShardSpec& spec() const { return spec_; }
  const Dims& shape() const { return shape_; }
  DType dtype() const { return local_.dtype(); }

  // The shard that the rank holds, and its elements.
  const Shard& shard() const { return shard_; }
  Tensor& local() { return local_; }
  const Tensor& local() const { return local_; }

  // "f32 [128,64] as [tp, -], rank 1 has [64,64]".
  std::string ToString() const;

 private:
  DistributedTensor(topology::Mesh mesh, topology::Rank rank, ShardSpec spec,
                    std::span<const int64_t> shape, Shard shard, Tensor local)
      : mesh_(std::move(mesh)),
        rank_(rank),
        spec_(std::move(spec)),
        shape_(shape.begin(), shape.end()),
        shard_(std::move(shard)),
        local_(std::move(local)) {}

  topology::Mesh mesh_;
  topology::Rank rank_;
  ShardSpec spec_;
  Dims shape_;
  Shard shard_;
  Tensor local_;
};

// Returns whether shape, dtype, spec, shard and every bit of the local
// elements, which are in host memory, are the same. NaNs are equal where their
// bits are; zeros of different sign differ.
bool SameBits(const DistributedTensor& a, const DistributedTensor& b);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_DISTRIBUTED_TENSOR_H_
