// Maps each DType to its C++ type, and dispatches from a run-time DType to code
// that is compiled for its type.
//
//   static_assert(kDTypeOf<float> == DType::kF32);
//   CppTypeOf<DType::kBF16> x(1.0f);
//   double sum = DispatchDType(dtype, [&]<typename T>(std::type_identity<T>) {
//     return Sum<T>(bytes);
//   });
#ifndef TESSERA_BASE_DTYPE_DTYPE_TRAITS_H_
#define TESSERA_BASE_DTYPE_DTYPE_TRAITS_H_

#include <cstdint>
#include <cstdlib>
#include <type_traits>
#include <utility>

#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"

namespace tessera {
namespace dtype_traits_internal {

template <DType dtype>
struct ToCpp;
template <typename T>
struct ToDType {
  static constexpr bool kExists = false;
};

#define TESSERA_DTYPE_PAIR_(dtype, Type)   \
  template <>                              \
  struct ToCpp<dtype> {                    \
    using type = Type;                     \
  };                                       \
  template <>                              \
  struct ToDType<Type> {                   \
    static constexpr bool kExists = true;  \
    static constexpr DType kValue = dtype; \
  };                                       \
  static_assert(sizeof(Type) == SizeInBytes(dtype))

TESSERA_DTYPE_PAIR_(DType::kF64, double);
TESSERA_DTYPE_PAIR_(DType::kF32, float);
TESSERA_DTYPE_PAIR_(DType::kF16, F16);
TESSERA_DTYPE_PAIR_(DType::kBF16, BF16);
TESSERA_DTYPE_PAIR_(DType::kF8E4M3, F8E4M3);
TESSERA_DTYPE_PAIR_(DType::kF8E5M2, F8E5M2);
TESSERA_DTYPE_PAIR_(DType::kI64, int64_t);
TESSERA_DTYPE_PAIR_(DType::kI32, int32_t);
TESSERA_DTYPE_PAIR_(DType::kI8, int8_t);
TESSERA_DTYPE_PAIR_(DType::kU8, uint8_t);

#undef TESSERA_DTYPE_PAIR_

}  // namespace dtype_traits_internal

// A C++ type that is the element type of some DType.
template <typename T>
concept DTypeElement = dtype_traits_internal::ToDType<T>::kExists;

template <DTypeElement T>
inline constexpr DType kDTypeOf = dtype_traits_internal::ToDType<T>::kValue;

template <DType dtype>
using CppTypeOf = typename dtype_traits_internal::ToCpp<dtype>::type;

// Calls `functor(std::type_identity<T>{})` with the C++ type of `dtype` and
// returns its result, whose type must be the same for all of them. `dtype` must
// be valid: check external input with IsValid.
template <typename Functor>
constexpr decltype(auto) DispatchDType(DType dtype, Functor&& functor) {
  switch (dtype) {
    case DType::kF64:
      return functor(std::type_identity<double>{});
    case DType::kF32:
      return functor(std::type_identity<float>{});
    case DType::kF16:
      return functor(std::type_identity<F16>{});
    case DType::kBF16:
      return functor(std::type_identity<BF16>{});
    case DType::kF8E4M3:
      return functor(std::type_identity<F8E4M3>{});
    case DType::kF8E5M2:
      return functor(std::type_identity<F8E5M2>{});
    case DType::kI64:
      return functor(std::type_identity<int64_t>{});
    case DType::kI32:
      return functor(std::type_identity<int32_t>{});
    case DType::kI8:
      return functor(std::type_identity<int8_t>{});
    case DType::kU8:
      return functor(std::type_identity<uint8_t>{});
  }
  std::abort();
}

}  // namespace tessera

#endif  // TESSERA_BASE_DTYPE_DTYPE_TRAITS_H_
