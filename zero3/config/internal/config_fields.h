// The fields of a ZeroConfig by name, as plain values: the one table that
// reading, writing and suggesting names go by.
#ifndef TESSERA_ZERO3_CONFIG_INTERNAL_CONFIG_FIELDS_H_
#define TESSERA_ZERO3_CONFIG_INTERNAL_CONFIG_FIELDS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "zero3/config/zero_config.h"

namespace tessera::zero3::internal {

// A value of a document: null, truth, whole number (the second where it exceeds
// 2^63-1), other number or text.
using Scalar =
    std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string>;

// "the integer 3", "the string \"x\"" (cut and escaped), "null".
std::string Describe(const Scalar& scalar);

struct ConfigField {
  std::string_view name;
  // InvalidArgument, saying what is expected and what was found, where the
  // value is of another type; the configuration is then as it was.
  absl::Status (*set)(const Scalar& value, ZeroConfig& config);
  Scalar (*get)(const ZeroConfig& config);
};

// Every field, in the order in which they are written.
std::span<const ConfigField> ConfigFields();

// The field of that name, or null.
const ConfigField* FindConfigField(std::string_view name);

// InvalidArgument that names the unknown field and the nearest known one: that
// with the least edit distance, letters' case aside.
absl::Status UnknownField(std::string_view name);

}  // namespace tessera::zero3::internal

#endif  // TESSERA_ZERO3_CONFIG_INTERNAL_CONFIG_FIELDS_H_
