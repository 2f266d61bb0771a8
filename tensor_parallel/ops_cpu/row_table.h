// GatherRows and AddRows of ops/ops.h on the CPU. Memory-bound; in the calling
// thread. AddRows sorts the ids (stably, with 8 bytes for each), so that each
// row of the table is read, added to in statistics and rounded once.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_ROW_TABLE_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_ROW_TABLE_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/sharding/index_range.h"

namespace tessera::tensor_parallel::cpu {

absl::Status GatherRows(const ConstTensorView& table, IndexRange held,
                        std::span<const int64_t> ids, const TensorView& y);
absl::Status AddRows(const ConstTensorView& gradient, IndexRange held,
                     std::span<const int64_t> ids,
                     const TensorView& table_gradient);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_ROW_TABLE_H_
