// Choices of a ZeroConfig that have names: compression and gradient type.
//
//   topology::ParseEnum<Compression>("int8");
#ifndef TESSERA_ZERO3_CONFIG_CHOICES_H_
#define TESSERA_ZERO3_CONFIG_CHOICES_H_

#include <array>
#include <string_view>

#include "topology/config/options/named_enum.h"

namespace tessera::zero3 {

// Found by argument-dependent look-up for the enumerations of this namespace.
using topology::AbslParseFlag;
using topology::AbslUnparseFlag;
using topology::operator<<;

// What becomes of state on its way off the device.
enum class Compression {
  kNone,
  kFp16,
  kBf16,
  kInt8,          // block-wise, with an absolute maximum for each block
  kQuantization,  // four bits, block-wise
  kLossless,
};

// The type in which gradients are summed up over micro-batches and kept.
enum class GradientType {
  kParameter,  // that of the parameter
  kFp32,
};

}  // namespace tessera::zero3

template <>
struct tessera::topology::EnumNames<tessera::zero3::Compression> {
  static constexpr std::string_view kWhat = "compression";
  static constexpr auto kTable = std::to_array<NamedValue<zero3::Compression>>({
      {"none", zero3::Compression::kNone},
      {"fp16", zero3::Compression::kFp16},
      {"bf16", zero3::Compression::kBf16},
      {"int8", zero3::Compression::kInt8},
      {"quantization", zero3::Compression::kQuantization},
      {"lossless", zero3::Compression::kLossless},
  });
};

template <>
struct tessera::topology::EnumNames<tessera::zero3::GradientType> {
  static constexpr std::string_view kWhat = "gradient type";
  static constexpr auto kTable =
      std::to_array<NamedValue<zero3::GradientType>>({
          {"parameter", zero3::GradientType::kParameter},
          {"fp32", zero3::GradientType::kFp32},
      });
};

#endif  // TESSERA_ZERO3_CONFIG_CHOICES_H_
