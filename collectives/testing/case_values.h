// The values of conformance cases: small whole numbers, such that every type
// holds every result exactly.
#ifndef TESSERA_COLLECTIVES_TESTING_CASE_VALUES_H_
#define TESSERA_COLLECTIVES_TESTING_CASE_VALUES_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "collectives/testing/conformance_case.h"

namespace tessera::collectives {

inline uint64_t Hash(uint64_t x) {
  x *= 0x9e3779b97f4a7c15ULL;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  return x ^ x >> 32;
}

// Element `index` of what `rank` brings.
inline int64_t ValueOf(const ConformanceCase& test_case, int64_t rank,
                       int64_t index) {
  const uint64_t hash =
      Hash(test_case.seed ^ static_cast<uint64_t>(rank) << 48 ^
           static_cast<uint64_t>(index));
  const bool is_signed = test_case.dtype != DType::kU8;
  if (Reduces(test_case.kind) && test_case.reduction.op == ReduceOp::kProduct) {
    constexpr int64_t kFactors[] = {1, 2, 1, -1};
    return kFactors[hash % (is_signed ? 4 : 3)];
  }
  return static_cast<int64_t>(hash % 9) - (is_signed ? 4 : 0);
}

// What all ranks' elements `index` are combined into.
template <typename T>
T ReducedValue(const ConformanceCase& test_case, int64_t ranks, int64_t index) {
  int64_t result = ValueOf(test_case, 0, index);
  for (int64_t r = 1; r < ranks; ++r) {
    const int64_t value = ValueOf(test_case, r, index);
    switch (test_case.reduction.op) {
      case ReduceOp::kProduct:
        result *= value;
        break;
      case ReduceOp::kMin:
        result = std::min(result, value);
        break;
      case ReduceOp::kMax:
        result = std::max(result, value);
        break;
      default:
        result += value;
    }
  }
  if constexpr (std::is_integral_v<T>) {
    if (test_case.reduction.op == ReduceOp::kAverage) result /= ranks;
    if (test_case.reduction.op == ReduceOp::kScaledSum) {
      result *= static_cast<int64_t>(test_case.reduction.scale);
    }
    return static_cast<T>(result);
  } else {
    using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
    Wide wide = static_cast<Wide>(result);
    if (test_case.reduction.op == ReduceOp::kAverage) {
      wide /= static_cast<Wide>(ranks);
    }
    if (test_case.reduction.op == ReduceOp::kScaledSum) {
      wide *= static_cast<Wide>(test_case.reduction.scale);
    }
    return T(wide);
  }
}

template <typename T>
T Element(int64_t value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(value);
  } else if constexpr (std::is_same_v<T, double>) {
    return static_cast<double>(value);
  } else {
    return T(static_cast<float>(value));
  }
}

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_CASE_VALUES_H_
