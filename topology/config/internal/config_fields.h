// The fields of a ParallelConfig by name, as plain values.
//
// The one table that reading, writing and suggesting names go by.
#ifndef TESSERA_TOPOLOGY_CONFIG_INTERNAL_CONFIG_FIELDS_H_
#define TESSERA_TOPOLOGY_CONFIG_INTERNAL_CONFIG_FIELDS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "topology/config/parallel_config.h"

namespace tessera::topology::internal {

// A value of a document: null, truth, whole number (the second where it exceeds
// 2^63-1), other number or text.
using Scalar =
    std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string>;

// "the integer 3", "the string \"x\"" (cut at 40 bytes, escaped), "null".
std::string Describe(const Scalar& scalar);

struct ConfigField {
  std::string_view name;
  // InvalidArgument, saying what is expected and what was found, where the
  // value is of another type; the configuration is then as it was.
  absl::Status (*set)(const Scalar& value, ParallelConfig& config);
  Scalar (*get)(const ParallelConfig& config);
};

// Every field, in the order in which they are written.
std::span<const ConfigField> ConfigFields();

// The field of that name, or null.
const ConfigField* FindConfigField(std::string_view name);

// InvalidArgument that names the unknown field and the nearest known one.
absl::Status UnknownField(std::string_view name);

}  // namespace tessera::topology::internal

#endif  // TESSERA_TOPOLOGY_CONFIG_INTERNAL_CONFIG_FIELDS_H_
