#include "base/dtype/convert.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert_value.h"
#include "base/dtype/dtype_traits.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

using Kernel = void (*)(const std::byte* source, std::byte* target,
                        size_t count);

// Elements go through memcpy, because the spans may be unaligned.
template <typename From, typename To, FloatOverflow overflow>
[[gnu::always_inline]] inline void ConvertLoop(
    const std::byte* __restrict source, std::byte* __restrict target,
    size_t count) {
  for (size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, source + i * sizeof(From), sizeof(From));
    const To result = ConvertValue<To, overflow>(value);
    std::memcpy(target + i * sizeof(To), &result, sizeof(To));
  }
}

template <typename From, typename To, FloatOverflow overflow>
[[gnu::flatten]] void ConvertPortable(const std::byte* source,
                                      std::byte* target, size_t count) {
  ConvertLoop<From, To, overflow>(source, target, count);
}

#ifdef __x86_64__
template <typename From, typename To, FloatOverflow overflow>
[[gnu::flatten, gnu::target("avx2")]] void ConvertAvx2(const std::byte* source,
                                                       std::byte* target,
                                                       size_t count) {
  ConvertLoop<From, To, overflow>(source, target, count);
}
#endif

template <typename From, typename To, FloatOverflow overflow>
Kernel BestKernel() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) return ConvertAvx2<From, To, overflow>;
#endif
  return ConvertPortable<From, To, overflow>;
}

Kernel FindKernel(DType from, DType to, FloatOverflow overflow) {
  return DispatchDType(from, [&]<typename From>(std::type_identity<From>) {
    return DispatchDType(to, [&]<typename To>(std::type_identity<To>) {
      if constexpr (IsFloating(kDTypeOf<To>)) {
        if (overflow == FloatOverflow::kSaturate) {
          return BestKernel<From, To, FloatOverflow::kSaturate>();
        }
      }
      return BestKernel<From, To, FloatOverflow::kInfinityOrNan>();
    });
  });
}

absl::Status CheckDisjoint(std::span<const std::byte> source,
                           std::span<const std::byte> target) {
  const auto begin = reinterpret_cast<uintptr_t>(source.data());
  const auto other = reinterpret_cast<uintptr_t>(target.data());
  if (begin < other + target.size() && other < begin + source.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("source of ", source.size(), " bytes and target of ",
                     target.size(), " bytes overlap; give separate memory"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckConvertSizes(DType from, size_t source_bytes, DType to,
                               size_t target_bytes) {
  for (DType dtype : {from, to}) {
    if (IsValid(dtype)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("dtype number ", static_cast<int>(dtype),
                     " is not valid; expected 0 to ", kAllDTypes.size() - 1));
  }
  const size_t from_size = static_cast<size_t>(SizeInBytes(from));
  const size_t to_size = static_cast<size_t>(SizeInBytes(to));
  if (source_bytes % from_size != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "source of ", source_bytes, " bytes is not a whole number of ",
        DTypeName(from), " elements of ", from_size, " bytes"));
  }
  const size_t count = source_bytes / from_size;
  if (target_bytes % to_size != 0 || target_bytes / to_size != count) {
    return absl::InvalidArgumentError(
        absl::StrCat("target of ", target_bytes, " bytes does not hold ", count,
                     " ", DTypeName(to), " elements; give exactly ", count,
                     " * ", to_size, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status Convert(DType from, std::span<const std::byte> source, DType to,
                     std::span<std::byte> target, FloatOverflow overflow) {
  TESSERA_RETURN_IF_ERROR(
      CheckConvertSizes(from, source.size(), to, target.size()));
  if (source.empty()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(CheckDisjoint(source, target));
  if (from == to) {
    std::memcpy(target.data(), source.data(), source.size());
    return absl::OkStatus();
  }
  const size_t count = source.size() / static_cast<size_t>(SizeInBytes(from));
  FindKernel(from, to, overflow)(source.data(), target.data(), count);
  return absl::OkStatus();
}

}  // namespace tessera
