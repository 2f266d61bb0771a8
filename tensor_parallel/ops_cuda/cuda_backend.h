// The state that the CUDA kernels of one queue share, the alignment of their
// operands, and the functions that register the kernels of each file.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDA_BACKEND_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDA_BACKEND_H_

#include <cstdint>
#include <memory>

#include "base/cuda/stream.h"
#include "base/device/device.h"
#include "base/device/operation.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cuda/scratch.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

// Libraries; defined and used in cuda_kernels.cc.
struct CudaLibraries;

struct CudaBackend {
  Queue& queue;
  KernelStream stream;
  Scratch scratch;
  std::shared_ptr<CudaLibraries> libraries = nullptr;
};

using CudaKernelTable = KernelTable<CudaBackend, LayerOperations>;

// True if every row of `view`, along its last dimension, begins at a multiple
// of 16 bytes.
template <typename Byte>
bool RowsAreAligned(const BasicTensorView<Byte>& view) {
  if (reinterpret_cast<uintptr_t>(view.data()) % 16 != 0) return false;
  for (int dim = 0; dim + 1 < view.rank(); ++dim) {
    const int64_t bytes = view.strides()[dim] * SizeInBytes(view.dtype());
    if (view.shape()[dim] > 1 && bytes % 16 != 0) return false;
  }
  return true;
}

// True if, in addition, rows of n elements consist of whole packs.
template <typename... Views>
bool HasPacks(int64_t n, int pack, const Views&... views) {
  return n % pack == 0 && (RowsAreAligned(views) && ...);
}

absl::Status SetRowDots(CudaBackend& cuda, const op::RowDots& call);

void AddCrossEntropyKernels(CudaKernelTable& table);
void AddElementwiseKernels(CudaKernelTable& table);
void AddFp8Kernels(CudaKernelTable& table);
void AddRouterKernels(CudaKernelTable& table);
void AddRowSumKernels(CudaKernelTable& table);
void AddRowTableKernels(CudaKernelTable& table);

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDA_BACKEND_H_
