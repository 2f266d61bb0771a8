// Softmax cross-entropy in one kernel, for a rank that holds the whole
// vocabulary. The operations of ops/ops.h for parts of the vocabulary are in
// the same .cu file.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_CROSS_ENTROPY_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_CROSS_ENTROPY_H_

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

// RowMax, SumExp, Pick, CrossEntropyLosses and CrossEntropyGradient in one
// kernel, for a whole vocabulary `held`: reads the logits twice, instead of
// four times, and overwrites them with their gradient. The maximum and the sum
// are computed together (Milakov and Gimelshein, arXiv 1805.02867).
absl::Status FusedCrossEntropy(KernelStream stream, IndexRange held,
                               const ConstTensorView& targets,
                               const ConstTensorView& scales,
                               const LossTerms& terms, const TensorView& logits,
                               const TensorView& losses);

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_CROSS_ENTROPY_H_
