// CudaGemm: products of matrices (Gemm of ops/ops.h). cuBLASLt computes them on
// a GPU; in the emulation a loop of the host replaces that library.
//
//   TESSERA_ASSIGN_OR_RETURN(auto gemm, CudaGemm::Create(queue));
//   // y = x w^T
//   TESSERA_RETURN_IF_ERROR(
//       gemm->Run(stream, {.transpose_b = true}, x, w, y));
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_GEMM_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_GEMM_H_

#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/stream.h"
#include "base/device/device.h"
#include "base/status_macros.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

// The products of one queue, whose calls share a workspace. Results depend only
// on the operands' values, shapes, strides and alignments.
class CudaGemm {
 public:
  // Allocates 64 MiB of the device's memory for the workspace; nothing in the
  // emulation.
  static absl::StatusOr<std::unique_ptr<CudaGemm>> Create(Queue& queue);

  virtual ~CudaGemm() = default;

  // c = alpha op(a) op(b) + beta c. Factors of bf16 are accumulated in f32 and
  // rounded once, to c's bf16 or f32; f32 is accumulated in f32 without TF32,
  // f64 in f64. If alpha is 0 or the inner dimension is 0, the factors are
  // ignored. Enqueued on `stream`, which must be the queue's. Errors name the
  // product and cuBLASLt's status: Unimplemented for unsupported types or
  // strides, ResourceExhausted if memory is exhausted.
  virtual absl::Status Run(KernelStream stream, const GemmOptions& options,
                           const ConstTensorView& a, const ConstTensorView& b,
                           const TensorView& c) = 0;

  // Runs products whose operands have equal options, types, shapes and strides,
  // none of them empty, and equal distances in memory: one call of cuBLASLt.
  // Errors are Run's.
  virtual absl::Status RunBatch(KernelStream stream,
                                std::span<const op::Gemm> products) {
    for (const op::Gemm& p : products) {
      TESSERA_RETURN_IF_ERROR(Run(stream, p.options, p.a, p.b, p.c));
    }
    return absl::OkStatus();
  }

  // GemmFp8 of ops/ops.h, accumulated in f32 (with `fast`, in the precision of
  // the tensor cores) and rounded once. Preconditions, which cuda_kernels.cc
  // checks: sizes, addresses and strides are multiples of 16 elements or bytes.
  // The scalars are in memory of the device.
  virtual absl::Status RunFp8(KernelStream stream,
                              const Fp8GemmOptions& options,
                              const ConstTensorView& a,
                              const ConstTensorView& a_inverse,
                              const ConstTensorView& b,
                              const ConstTensorView& b_inverse,
                              const TensorView& c) = 0;
};

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_GEMM_H_
