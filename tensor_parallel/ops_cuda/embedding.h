// Kernels of row tables: GatherRows and AddRows of ops.h.
//
// AddRows gives the bits of the CPU: the rows of one id are added to its row of
// the table in the order of i, in statistics, and rounded once. For this the
// held (id, i) are sorted by blocks in shared memory, then merged; each step
// depends on the ids alone.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_EMBEDDING_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_EMBEDDING_H_

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops_cuda/scratch.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

absl::Status GatherRows(KernelStream stream, const ConstTensorView& table,
                        IndexRange held, const ConstTensorView& ids,
                        const TensorView& y);

// Uses 16 bytes of scratch for each id. InvalidArgument for 2^31 ids or 2^32-1
// rows or more.
absl::Status AddRows(KernelStream stream, Scratch& scratch,
                     const ConstTensorView& gradient, IndexRange held,
                     const ConstTensorView& ids,
                     const TensorView& table_gradient);

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_EMBEDDING_H_
