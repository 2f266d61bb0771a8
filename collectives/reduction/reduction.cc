#include "collectives/reduction/reduction.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype/dtype_traits.h"

namespace tessera::collectives {
namespace {

constexpr std::array<std::string_view, kAllReduceOps.size()> kNames = {
    "sum",        "average", "product", "min",     "max",
    "scaled_sum", "bit_and", "bit_or",  "bit_xor",
};

struct Synonym {
  std::string_view name;
  ReduceOp op;
};
constexpr Synonym kSynonyms[] = {
    {"avg", ReduceOp::kAverage}, {"prod", ReduceOp::kProduct},
    {"minimum", ReduceOp::kMin}, {"maximum", ReduceOp::kMax},
    {"band", ReduceOp::kBitAnd}, {"bor", ReduceOp::kBitOr},
    {"bxor", ReduceOp::kBitXor}, {"mulsum", ReduceOp::kScaledSum},
};

bool IsWholeNumberOf(DType dtype, double scale) {
  if (scale != std::trunc(scale)) return false;
  return DispatchDType(dtype, [&]<typename T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T>) {
      // 2^63 is a double, 2^63 - 1 is not.
      return scale >= static_cast<double>(std::numeric_limits<T>::min()) &&
             scale < std::ldexp(1.0, std::numeric_limits<T>::digits);
    } else {
      return true;
    }
  });
}

}  // namespace

std::string_view ReduceOpName(ReduceOp op) {
  const auto index = static_cast<size_t>(op);
  return index < kNames.size() ? kNames[index] : "invalid";
}

absl::StatusOr<ReduceOp> ParseReduceOp(std::string_view text) {
  for (ReduceOp op : kAllReduceOps) {
    if (ReduceOpName(op) == text) return op;
  }
  for (const Synonym& synonym : kSynonyms) {
    if (synonym.name == text) return synonym.op;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown reduction \"", text.substr(0, 64), "\"; there are ",
                   absl::StrJoin(kNames, ", ")));
}

absl::Status Validate(const Reduction& reduction, DType dtype) {
  if (!IsReducible(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("elements of type ", DTypeName(dtype),
                     " cannot be reduced; f64 f32 f16 bf16 i64 i32 i8 u8 can"));
  }
  if (static_cast<size_t>(reduction.op) >= kNames.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(static_cast<int>(reduction.op), " is not a reduction"));
  }
  if (!IsReducible(dtype, reduction.op)) {
    return absl::InvalidArgumentError(
        absl::StrCat(ReduceOpName(reduction.op), " of ", DTypeName(dtype),
                     "; bits are reduced of integers only: i64 i32 i8 u8"));
  }
  if (reduction.op != ReduceOp::kScaledSum) return absl::OkStatus();
  if (!std::isfinite(reduction.scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the factor of a scaled sum is ", reduction.scale,
                     "; it must be finite"));
  }
  if (IsInteger(dtype) && !IsWholeNumberOf(dtype, reduction.scale)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the factor of a scaled sum of ", DTypeName(dtype), " is ",
        reduction.scale, "; it must be a whole number of that type"));
  }
  return absl::OkStatus();
}

}  // namespace tessera::collectives
