#include "base/device/cuda_convert.h"

#include <cstdint>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/device/cuda_convert_kernel.h"
#include "base/device/cuda_status.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

absl::Status CheckPointer(std::string_view name, const void* data,
                          DType dtype) {
  if (!IsValid(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " dtype number ", static_cast<int>(dtype),
                     " is not valid; expected 0 to ", kAllDTypes.size() - 1));
  }
  if (data == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("CUDA conversion with a null ", name));
  }
  const auto misalignment = reinterpret_cast<uintptr_t>(data) %
                            static_cast<uintptr_t>(SizeInBytes(dtype));
  if (misalignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("CUDA conversion's ", name, " lies ", misalignment,
                     " bytes past a multiple of ", SizeInBytes(dtype),
                     ", the size of ", DTypeName(dtype)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CudaConvert(DType from, const void* source, DType to, void* target,
                         int64_t count, cudaStream_t stream,
                         FloatOverflow overflow) {
  if (count < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "CUDA conversion of ", count, " elements; expected 0 or more"));
  }
  if (count == 0) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(CheckPointer("source", source, from));
  TESSERA_RETURN_IF_ERROR(CheckPointer("target", target, to));
  return CudaStatus(
      LaunchConvertKernel(from, source, to, target, count, stream, overflow),
      absl::StrCat("CUDA conversion of ", count, " elements from ",
                   DTypeName(from), " to ", DTypeName(to)));
}

}  // namespace tessera
