#include "collectives/nccl/nccl_types.h"

#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/dtype/dtype_traits.h"

namespace tessera::collectives {

ncclDataType_t NcclTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return ncclFloat64;
    case DType::kF32:
      return ncclFloat32;
    case DType::kF16:
      return ncclFloat16;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kI64:
      return ncclInt64;
    case DType::kI32:
      return ncclInt32;
    case DType::kI8:
      return ncclInt8;
    default:
      return ncclUint8;
  }
}

ncclRedOp_t NcclOpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage:
      return ncclAvg;
    case ReduceOp::kProduct:
      return ncclProd;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
    default:
      return ncclSum;
  }
}

std::array<std::byte, 8> ScalarOf(DType dtype, double value) {
  std::array<std::byte, 8> bytes{};
  DispatchDType(dtype, [&]<typename T>(std::type_identity<T>) {
    T scalar;
    if constexpr (std::is_arithmetic_v<T>) {
      scalar = static_cast<T>(value);
    } else {
      scalar = T(static_cast<float>(value));
    }
    std::memcpy(bytes.data(), &scalar, sizeof(T));
  });
  return bytes;
}

absl::Status NcclStatus(ncclResult_t result, std::string_view call,
                        std::string_view detail) {
  std::string message = absl::StrCat(call, ": ", ncclGetErrorString(result));
  if (!detail.empty()) absl::StrAppend(&message, ": ", detail.substr(0, 512));
  switch (result) {
    case ncclSuccess:
    case ncclInProgress:
      return absl::OkStatus();
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return absl::InvalidArgumentError(message);
    case ncclRemoteError:
    case ncclSystemError:
      return absl::UnavailableError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status CudaStatus(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(call, ": ", cudaGetErrorString(error));
  switch (error) {
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
      return absl::FailedPreconditionError(message);
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace tessera::collectives
