// DistributedTensor: one rank's shard of a tensor that a mesh holds together.
//
//   // Every rank of the mesh:
//   TESSERA_ASSIGN_OR_RETURN(
//       auto rows, DistributedTensor::FromWhole(layout, rank, whole, queue));
//   rows.local_shape();                       // [32, 512] of [128, 512]
//   rows.box().ranges[0];                     // [32, 64) on rank 1
//   TESSERA_ASSIGN_OR_RETURN(
//       auto columns, Redistribute(groups, queue, rows, {{"tp", 1}}));
//   TESSERA_ASSIGN_OR_RETURN(auto all, Gather(groups, queue, columns, 1));
//
// Elements lie in host or device memory. All work on them is enqueued on the
// queue that the caller gives (HostQueue() for host memory), after the work
// that is already there; when a function returns, its work is done.
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_DISTRIBUTED_TENSOR_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_DISTRIBUTED_TENSOR_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/dtype/dtype.h"
#include "base/tensor/layout.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor.h"
#include "base/tensor/tensor_view.h"
#include "collectives/groups/group_manager.h"
#include "tensor_parallel/sharding/box.h"
#include "tensor_parallel/sharding/redistribution.h"
#include "tensor_parallel/sharding/sharded_layout.h"
#include "topology/rank.h"

namespace tessera::tensor_parallel {

// Move-only, like Tensor. Communicates with no other rank by itself.
class DistributedTensor {
 public:
  // Allocates an uninitialised shard. InvalidArgument if the mesh has no such
  // rank; otherwise the errors of Tensor::Create.
  static absl::StatusOr<DistributedTensor> Create(
      const ShardedLayout& layout, topology::Rank rank, DType dtype,
      std::shared_ptr<MemoryResource> memory = HostMemory());

  // Takes an existing shard. InvalidArgument if the mesh has no such rank or
  // the shard does not have the shape of the rank's part.
  static absl::StatusOr<DistributedTensor> FromLocal(
      const ShardedLayout& layout, topology::Rank rank, Tensor local);

  // Copies this rank's part of a whole tensor that every rank has, in memory of
  // the queue's device. Along partial axes the first rank gets the elements and
  // the others zeros. InvalidArgument as Create, and if `whole` does not have
  // the layout's shape.
  static absl::StatusOr<DistributedTensor> FromWhole(
      const ShardedLayout& layout, topology::Rank rank, ConstTensorView whole,
      Queue& queue);

  const ShardedLayout& layout() const { return layout_; }
  topology::Rank rank() const { return rank_; }
  DType dtype() const { return local_.dtype(); }
  // The shape of the whole tensor, and of the part that this rank holds.
  const Dims& shape() const { return layout_.shape(); }
  const Dims& local_shape() const { return local_.shape(); }
  // The part of the whole tensor that this rank holds.
  const Box& box() const { return box_; }
  bool is_sharded() const { return layout_.is_sharded(); }
  bool requires_communication() const {
    return layout_.requires_communication();
  }
  // The number of the device of the elements; -1 in host memory.
  int device_id() const { return local_.buffer().device_ordinal(); }

  Tensor& local() { return local_; }
  const Tensor& local() const { return local_; }

  // "f32 [128,512] as tp:1; rank 1 holds [0, 128) x [256, 512)".
  std::string ToString() const;

 private:
  DistributedTensor(ShardedLayout layout, topology::Rank rank, Tensor local)
      : layout_(std::move(layout)),
        rank_(rank),
        box_(layout_.BoxOf(rank)),
        local_(std::move(local)) {}

  ShardedLayout layout_;
  topology::Rank rank_;
  Box box_;
  Tensor local_;
};

// The following are collectives: all ranks of the mesh call them with tensors
// of one layout and type, and the same other arguments. `groups` provides the
// communicators; for device memory its world must be on that device. The result
// is a new tensor in the same kind of memory. Sums are those of the
// communicators, in their order and rounding. Errors: InvalidArgument, before
// anything is sent, as PlanRedistribution and ShardedLayout::With, and if
// `groups` has another mesh or rank than the tensor or cannot access its
// memory; otherwise the errors of the communicator or device.

// Moves the tensor to other placements by the cheapest plan.
absl::StatusOr<DistributedTensor> Redistribute(
    collectives::GroupManager& groups, Queue& queue,
    const DistributedTensor& tensor, Placements to,
    const PlanOptions& options = {});

// By a plan that was made before. InvalidArgument if it is a plan for another
// layout or type.
absl::StatusOr<DistributedTensor> Redistribute(
    collectives::GroupManager& groups, Queue& queue,
    const DistributedTensor& tensor, const RedistributionPlan& plan);

// Makes dimension `dim` whole on every rank, by an all-gather.
absl::StatusOr<DistributedTensor> Gather(collectives::GroupManager& groups,
                                         Queue& queue,
                                         const DistributedTensor& tensor,
                                         int dim);

// Shards dimension `dim` along `axis`: by a local copy if the axis is
// replicated, by a reduce-scatter if it holds partial sums.
absl::StatusOr<DistributedTensor> Scatter(collectives::GroupManager& groups,
                                          Queue& queue,
                                          const DistributedTensor& tensor,
                                          std::string_view axis, int dim,
                                          PartitionRule rule = {});

// Adds the partial sums of all axes, by an all-reduce.
absl::StatusOr<DistributedTensor> Reduce(collectives::GroupManager& groups,
                                         Queue& queue,
                                         const DistributedTensor& tensor);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_DISTRIBUTED_TENSOR_H_
