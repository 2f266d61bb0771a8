// DType: the element types of tensors and messages.
//
//   ABSL_FLAG(tessera::DType, dtype, tessera::DType::kBF16, "...");
//   TESSERA_ASSIGN_OR_RETURN(DType dtype, ParseDType("bfloat16"));
//   int64_t bytes = count * SizeInBytes(dtype);
//
// base/dtype/dtype_traits.h maps each DType to its C++ type.
#ifndef TESSERA_BASE_DTYPE_DTYPE_H_
#define TESSERA_BASE_DTYPE_DTYPE_H_

#include <array>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

// The values are stable: they may be stored and sent.
enum class DType : uint8_t {
  kF64 = 0,
  kF32 = 1,
  kF16 = 2,
  kBF16 = 3,
  kF8E4M3 = 4,
  kF8E5M2 = 5,
  kI64 = 6,
  kI32 = 7,
  kI8 = 8,
  kU8 = 9,
};

inline constexpr std::array<DType, 10> kAllDTypes = {
    DType::kF64,    DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3,
    DType::kF8E5M2, DType::kI64, DType::kI32, DType::kI8,   DType::kU8,
};

// False for a number that is not an element type, which may come from a file.
constexpr bool IsValid(DType dtype) {
  return static_cast<uint8_t>(dtype) < kAllDTypes.size();
}

// Bytes of one element; 0 if `dtype` is not valid.
constexpr int64_t SizeInBytes(DType dtype) {
  constexpr std::array<int64_t, kAllDTypes.size()> kSizes = {8, 4, 2, 2, 1,
                                                             1, 8, 4, 1, 1};
  return IsValid(dtype) ? kSizes[static_cast<uint8_t>(dtype)] : 0;
}

constexpr bool IsFloating(DType dtype) { return dtype <= DType::kF8E5M2; }
constexpr bool IsInteger(DType dtype) {
  return IsValid(dtype) && !IsFloating(dtype);
}

// "f64" "f32" "f16" "bf16" "fp8_e4m3" "fp8_e5m2" "i64" "i32" "i8" "u8";
// "invalid" if `dtype` is not valid.
std::string_view DTypeName(DType dtype);

// Reads a name as DTypeName gives it, or one of the field's synonyms: float64
// double float32 float float16 half bfloat16 float8_e4m3fn float8_e5m2 int64
// int32 int8 uint8. Case matters. InvalidArgument lists what is allowed.
absl::StatusOr<DType> ParseDType(std::string_view text);

// Abseil flags.
bool AbslParseFlag(std::string_view text, DType* dtype, std::string* error);
std::string AbslUnparseFlag(DType dtype);

inline std::ostream& operator<<(std::ostream& os, DType dtype) {
  return os << DTypeName(dtype);
}

}  // namespace tessera

#endif  // TESSERA_BASE_DTYPE_DTYPE_H_
