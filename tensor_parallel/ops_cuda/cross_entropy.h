// Kernels of softmax cross-entropy: the operations of ops.h, and all of them at
// once where one rank holds the whole vocabulary.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_CROSS_ENTROPY_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_CROSS_ENTROPY_H_

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

absl::Status RowMax(KernelStream stream, const ConstTensorView& logits,
                    const TensorView& largest);
absl::Status SumExp(KernelStream stream, const ConstTensorView& logits,
                    const ConstTensorView& largest, const TensorView& sum);
absl::Status Pick(KernelStream stream, const ConstTensorView& logits,
                  IndexRange held, const ConstTensorView& targets,
                  const TensorView& picked);
absl::Status CrossEntropyLosses(KernelStream stream,
                                const ConstTensorView& largest,
                                const ConstTensorView& sum,
                                const ConstTensorView& picked,
                                const ConstTensorView& targets,
                                const TensorView& losses);
absl::Status CrossEntropyGradient(KernelStream stream,
                                  const ConstTensorView& largest,
                                  const ConstTensorView& sum, IndexRange held,
                                  const ConstTensorView& targets,
                                  const ConstTensorView& scales,
                                  const LossTerms& terms,
                                  const TensorView& logits);

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
