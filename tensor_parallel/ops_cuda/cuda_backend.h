// The state that the CUDA kernels of one queue share, and the functions that
// register the kernels of each file.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDA_BACKEND_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDA_BACKEND_H_

#include <memory>

#include "base/cuda/stream.h"
#include "base/device/device.h"
#include "base/device/operation.h"
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

void AddCrossEntropyKernels(CudaKernelTable& table);
void AddElementwiseKernels(CudaKernelTable& table);
void AddFp8Kernels(CudaKernelTable& table);
void AddRouterKernels(CudaKernelTable& table);
void AddRowSumKernels(CudaKernelTable& table);
void AddRowTableKernels(CudaKernelTable& table);

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDA_BACKEND_H_
