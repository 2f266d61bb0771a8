// Softmax cross-entropy in one kernel, where one rank holds the whole
// vocabulary. The operations of ops.h, for parts of it, are in the same file.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_CROSS_ENTROPY_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_CROSS_ENTROPY_H_

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

// RowMax, SumExp, Pick, CrossEntropyLosses and CrossEntropyGradient in one
// kernel, for a whole vocabulary `held`: logits are read twice and overwritten
// by their gradient, where the operations read them four times. The maximum and
// the sum are computed together (Milakov and Gimelshein, arXiv 1805.02867).
absl::Status FusedCrossEntropy(KernelStream stream, IndexRange held,
                               const ConstTensorView& targets,
                               const ConstTensorView& scales,
                               const LossTerms& terms, const TensorView& logits,
                               const TensorView& losses);

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_CROSS_ENTROPY_H_
