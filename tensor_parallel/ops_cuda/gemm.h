// CudaGemm: products of matrices (Gemm of ops/ops.h). On a GPU by cuBLASLt;
// emulated by a loop of the host, which stands in for that library.
//
//   TESSERA_ASSIGN_OR_RETURN(auto gemm, CudaGemm::Create(queue));
//   // y = x w^T
//   TESSERA_RETURN_IF_ERROR(
//       gemm->Run(stream, {.transpose_b = true}, x, w, y));
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_GEMM_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_GEMM_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/stream.h"
#include "base/device/device.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

// For one queue: its calls share a workspace. Results depend only on the
// operands' values, shapes, strides and alignments.
class CudaGemm {
 public:
  // Allocates 64 MiB of the device's memory for the workspace; emulated,
  // nothing.
  static absl::StatusOr<std::unique_ptr<CudaGemm>> Create(Queue& queue);

  virtual ~CudaGemm() = default;

  // c = alpha op(a) op(b) + beta c. Factors of bf16 are accumulated in f32 and
  // rounded once, to c's bf16 or f32; f32 is accumulated in f32 without TF32,
  // f64 in f64. If alpha is 0 or the factors have no common elements, they are
  // ignored. Enqueued on `stream`, which is the queue's. Errors name the
  // product and cuBLASLt's status: Unimplemented for types or strides that it
  // does not take, ResourceExhausted if memory ran out.
  virtual absl::Status Run(KernelStream stream, const GemmOptions& options,
                           const ConstTensorView& a, const ConstTensorView& b,
                           const TensorView& c) = 0;

  // GemmFp8 of ops/ops.h, accumulated in f32 (with `fast`, in what the tensor
  // cores have) and rounded once. Sizes, addresses and strides are whole units
  // of 16 elements or bytes, which cuda_kernels.cc checks. The scalars are in
  // memory of the device.
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
