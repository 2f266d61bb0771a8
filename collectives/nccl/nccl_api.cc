#include "collectives/nccl/nccl_api.h"

#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/dtype/dtype_traits.h"

namespace tessera::collectives {
namespace {

std::string_view NameOf(NcclResult result) {
  constexpr std::array<std::string_view, 8> kNames = {
      "success",
      "unhandled CUDA error",
      "system error",
      "internal error",
      "invalid argument",
      "invalid usage",
      "remote process exited or there was a network error",
      "in progress"};
  const auto index = static_cast<size_t>(result);
  return index < kNames.size() ? kNames[index] : "unknown result";
}

}  // namespace

NcclType NcclTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return NcclType::kFloat64;
    case DType::kF32:
      return NcclType::kFloat32;
    case DType::kF16:
      return NcclType::kFloat16;
    case DType::kBF16:
      return NcclType::kBfloat16;
    case DType::kI64:
      return NcclType::kInt64;
    case DType::kI32:
      return NcclType::kInt32;
    case DType::kI8:
      return NcclType::kInt8;
    default:
      return NcclType::kUint8;
  }
}

NcclOp NcclOpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage:
      return NcclOp::kAvg;
    case ReduceOp::kProduct:
      return NcclOp::kProd;
    case ReduceOp::kMin:
      return NcclOp::kMin;
    case ReduceOp::kMax:
      return NcclOp::kMax;
    default:
      return NcclOp::kSum;
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

absl::Status NcclStatus(NcclResult result, std::string_view call,
                        std::string_view detail) {
  std::string message = absl::StrCat("nccl", call, ": ", NameOf(result));
  if (!detail.empty()) absl::StrAppend(&message, ": ", detail.substr(0, 512));
  switch (result) {
    case NcclResult::kSuccess:
    case NcclResult::kInProgress:
      return absl::OkStatus();
    case NcclResult::kInvalidArgument:
    case NcclResult::kInvalidUsage:
      return absl::InvalidArgumentError(message);
    case NcclResult::kRemoteError:
    case NcclResult::kSystemError:
      return absl::UnavailableError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace tessera::collectives
