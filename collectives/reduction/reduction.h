// Reduction: the operator that combines the elements of all ranks into one.
//
//   communicator.AllReduce(gradients, Reduction::Average());
//   communicator.AllReduce(gradients, Reduction::ScaledSum(1.0 / loss_scale));
//
// f16 and bf16 are combined in f32. They are rounded once if one rank combines
// all contributions, or once per hop if partial results are sent. Integers
// wrap. The minimum and maximum of floating-point numbers are NaN if any number
// is.
#ifndef TESSERA_COLLECTIVES_REDUCTION_REDUCTION_H_
#define TESSERA_COLLECTIVES_REDUCTION_REDUCTION_H_

#include <array>
#include <cstdint>
#include <ostream>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"

namespace tessera::collectives {

// The values are stable because they are sent between processes.
enum class ReduceOp : uint8_t {
  kSum = 0,
  kAverage = 1,  // The sum divided by the world size; integers towards zero.
  kProduct = 2,
  kMin = 3,
  kMax = 4,
  kScaledSum = 5,  // Every element times a factor, then the sum.
  // Bitwise reductions require integer types.
  kBitAnd = 6,
  kBitOr = 7,
  kBitXor = 8,
};

inline constexpr std::array<ReduceOp, 9> kAllReduceOps = {
    ReduceOp::kSum,    ReduceOp::kAverage, ReduceOp::kProduct,
    ReduceOp::kMin,    ReduceOp::kMax,     ReduceOp::kScaledSum,
    ReduceOp::kBitAnd, ReduceOp::kBitOr,   ReduceOp::kBitXor,
};

constexpr bool IsBitwise(ReduceOp op) {
  return op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr ||
         op == ReduceOp::kBitXor;
}

// "sum" "average" "product" "min" "max" "scaled_sum" "bit_and" "bit_or"
// "bit_xor".
std::string_view ReduceOpName(ReduceOp op);

// Parses a name returned by ReduceOpName, or one of "avg" "prod" "minimum"
// "maximum" "band" "bor" "bxor". InvalidArgument lists the allowed names.
absl::StatusOr<ReduceOp> ParseReduceOp(std::string_view text);

struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double scale = 1.0;  // The factor of kScaledSum, the same on every rank.

  static constexpr Reduction Sum() { return {ReduceOp::kSum, 1.0}; }
  static constexpr Reduction Average() { return {ReduceOp::kAverage, 1.0}; }
  static constexpr Reduction Product() { return {ReduceOp::kProduct, 1.0}; }
  static constexpr Reduction Min() { return {ReduceOp::kMin, 1.0}; }
  static constexpr Reduction Max() { return {ReduceOp::kMax, 1.0}; }
  static constexpr Reduction BitAnd() { return {ReduceOp::kBitAnd, 1.0}; }
  static constexpr Reduction BitOr() { return {ReduceOp::kBitOr, 1.0}; }
  static constexpr Reduction BitXor() { return {ReduceOp::kBitXor, 1.0}; }
  static constexpr Reduction ScaledSum(double scale) {
    return {ReduceOp::kScaledSum, scale};
  }

  friend bool operator==(const Reduction&, const Reduction&) = default;
};

// The types that can be reduced: f64 f32 f16 bf16 i64 i32 i8 u8.
constexpr bool IsReducible(DType dtype) {
  return IsValid(dtype) && dtype != DType::kF8E4M3 && dtype != DType::kF8E5M2;
}

// True if `op` can reduce `dtype`; bitwise reductions require integer types.
constexpr bool IsReducible(DType dtype, ReduceOp op) {
  return IsReducible(dtype) && (IsInteger(dtype) || !IsBitwise(op));
}

// InvalidArgument if `dtype` cannot be reduced, if a bitwise reduction has a
// floating-point type, or if the factor of a scaled sum is not finite or, for
// an integer type, not a whole number of that type.
absl::Status Validate(const Reduction& reduction, DType dtype);

inline std::ostream& operator<<(std::ostream& os, ReduceOp op) {
  return os << ReduceOpName(op);
}

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_REDUCTION_REDUCTION_H_
