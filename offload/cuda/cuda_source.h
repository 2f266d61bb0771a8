// CudaSource: how full the memory of a CUDA device is, as a limit among others.
//
//   std::vector<std::shared_ptr<MemorySource>> sources = {
//       std::make_shared<SystemMemory>()};
//   auto device = CudaSource(/*ordinal=*/0);
//   if (device.ok()) sources.push_back(*std::move(device));
//   CombinedSource source(std::move(sources));
#ifndef TESSERA_OFFLOAD_CUDA_CUDA_SOURCE_H_
#define TESSERA_OFFLOAD_CUDA_CUDA_SOURCE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "offload/pressure/reading/memory_reading.h"

namespace tessera::offload {

// Used is what all processes use (cudaMemGetInfo). The limit is called
// "cuda:0". Errors of CudaMemoryUseOf, now and of each Read: Unimplemented
// without the toolkit, Unavailable without a device, OutOfRange without this
// one.
absl::StatusOr<std::shared_ptr<MemorySource>> CudaSource(int ordinal);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CUDA_CUDA_SOURCE_H_
