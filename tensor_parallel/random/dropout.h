// Dropout: elements set to zero at random, the same ones on every mesh.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Dropout dropout,
//       Dropout::Create({.seed = step, .stream = layer}, 0.1, {"dp"}));
//   TESSERA_RETURN_IF_ERROR(dropout.Apply(x, y));      // forward
//   TESSERA_RETURN_IF_ERROR(dropout.Apply(dy, dx));    // backward
//
// The key and the number of an element in the whole tensor determine whether it
// is kept. The mask is never stored; the backward pass, which is the same
// linear map, computes it again. Masks along an axis:
//
//   the axis shards the tensor        ranks have other elements, so other masks
//   ranks hold the same, or addends   the same mask: replicas stay replicas
//   the axis is in `differs_along`    another mask for each coordinate: for
//                                     tensors that are alike in shape alone, as
//                                     the activations of data-parallel ranks
//
// Kept elements are multiplied by 1 / (1 - probability), in f64, and rounded
// once. Source: Srivastava et al., JMLR 15, 2014.
#ifndef TESSERA_TENSOR_PARALLEL_RANDOM_DROPOUT_H_
#define TESSERA_TENSOR_PARALLEL_RANDOM_DROPOUT_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/random/philox.h"
#include "tensor_parallel/sharding/distributed_tensor.h"
#include "tensor_parallel/sharding/shard_spec.h"
#include "topology/mesh.h"

namespace tessera::tensor_parallel {

class Dropout {
 public:
  // `probability` is that of an element's being dropped. InvalidArgument if it
  // is not in [0, 1) or an axis is named twice.
  static absl::StatusOr<Dropout> Create(
      const RandomKey& key, double probability,
      std::vector<std::string> differs_along = {});

  double probability() const { return probability_; }

  // The key of a rank's mask: that of the constructor, with the rank's place
  // along `differs_along` folded in. InvalidArgument if the mesh has no such
  // rank or axis.
  absl::StatusOr<RandomKey> KeyOf(const topology::Mesh& mesh,
                                  topology::Rank rank) const;

  // Applies to the rank's shard of a tensor of `shape`; both views must be
  // contiguous, in host memory, of one floating-point type, and may be the same
  // memory. InvalidArgument, with nothing written, otherwise, or if `spec` uses
  // an axis of `differs_along`.
  absl::Status Apply(const topology::Mesh& mesh, topology::Rank rank,
                     const ShardSpec& spec, std::span<const int64_t> shape,
                     const ConstTensorView& input,
                     const TensorView& output) const;

  // Both tensors are of one rank, spec, shape and type.
  absl::Status Apply(const DistributedTensor& input,
                     DistributedTensor& output) const;

 private:
  Dropout(const RandomKey& key, double probability,
          std::vector<std::string> differs_along)
      : key_(key),
        probability_(probability),
        differs_along_(std::move(differs_along)) {}

  RandomKey key_;
  double probability_;
  std::vector<std::string> differs_along_;  // Sorted.
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_RANDOM_DROPOUT_H_
