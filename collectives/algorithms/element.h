// Elements of any type as doubles.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_ELEMENT_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_ELEMENT_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/dtype/bfloat16.h"
#include "base/dtype/dtype.h"
#include "base/dtype/float16.h"

namespace tessera::collectives {

// Calls body(T()) with the C++ type of a dtype that can be reduced.
template <typename Body>
auto WithType(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF64:
      return body(double());
    case DType::kF16:
      return body(F16());
    case DType::kBF16:
      return body(BF16());
    case DType::kI64:
      return body(int64_t());
    case DType::kI32:
      return body(int32_t());
    case DType::kI8:
      return body(int8_t());
    case DType::kU8:
      return body(uint8_t());
    default:
      return body(float());
  }
}

inline double LoadElement(DType dtype, const std::byte* base, int64_t index) {
  return WithType(dtype, [&]<typename T>(T value) {
    std::memcpy(&value, base + index * static_cast<int64_t>(sizeof(T)),
                sizeof(T));
    if constexpr (std::is_arithmetic_v<T>) {
      return static_cast<double>(value);
    } else {
      return static_cast<double>(static_cast<float>(value));
    }
  });
}

inline void StoreElement(DType dtype, std::byte* base, int64_t index,
                         double number) {
  WithType(dtype, [&]<typename T>(T value) {
    if constexpr (std::is_arithmetic_v<T>) {
      value = static_cast<T>(number);
    } else {
      value = T(static_cast<float>(number));
    }
    std::memcpy(base + index * static_cast<int64_t>(sizeof(T)), &value,
                sizeof(T));
  });
}

// The distance from 1 to the next number of a floating-point type.
inline double EpsilonOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return std::ldexp(1, -52);
    case DType::kF16:
      return std::ldexp(1, -10);
    case DType::kBF16:
      return std::ldexp(1, -7);
    default:
      return std::ldexp(1, -23);
  }
}

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_ELEMENT_H_
