// CopyShared: the elements that two shards of a tensor have in common.
//
//   // Out of a whole tensor, and back into it.
//   const Shard whole = WholeOf(full.shape());
//   CopyShared(whole, full.view(), mine, local.view());
//   CopyShared(mine, local.view(), whole, full.view());
//
// Slicing, packing for a collective, and unpacking are all this: a packed piece
// is the shard that it contains.
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_SHARD_COPY_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_SHARD_COPY_H_

#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/sharding/shard_spec.h"

namespace tessera::tensor_parallel {

// The whole of a tensor as one shard.
Shard WholeOf(std::span<const int64_t> shape);

// Where the elements of `part` begin in the row-major elements of `whole`,
// which holds all of them; nothing if they do not lie in one row there, in
// their order.
std::optional<int64_t> OffsetIn(const Shard& whole, const Shard& part);

// Copies what `from` and `to` share, from the one to the other. The views have
// the shards' shapes and do not share memory. InvalidArgument if a view has
// another shape or the dtypes differ; else as Copy.
absl::Status CopyShared(const Shard& from, const ConstTensorView& source,
                        const Shard& to, const TensorView& target);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_SHARD_COPY_H_
