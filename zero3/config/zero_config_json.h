// ZeroConfig as JSON: one object, one key for each field.
//
//   {"stage": 3, "cpu_budget": "64GiB", "offload_parameters": false,
//    "compression": "lossless", "strategy": "balanced"}
//
//   TESSERA_ASSIGN_OR_RETURN(auto config, LoadZeroConfig("zero.json"));
//   TESSERA_RETURN_IF_ERROR(config.Validate());
//
// Keys not given keep their defaults. Byte sizes are texts with a unit or
// integers. Source: RFC 8259, with the added rule that no key comes twice.
#ifndef TESSERA_ZERO3_CONFIG_ZERO_CONFIG_JSON_H_
#define TESSERA_ZERO3_CONFIG_ZERO_CONFIG_JSON_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "zero3/config/zero_config.h"

namespace tessera::zero3 {

// A document has at most this many bytes.
inline constexpr size_t kMaxZeroConfigBytes = size_t{1} << 16;

// Reads a document. InvalidArgument where it is no JSON object, too long or
// nested, where a key is unknown (the nearest known one is named) or comes
// twice, and where a value is of the wrong type. What the values mean is not
// checked: that is Validate's.
absl::StatusOr<ZeroConfig> ParseZeroConfig(std::string_view json);

// Every field, one on a line. ParseZeroConfig reads it back as the same
// configuration, unless a number is not finite, an enumeration outside its
// table, or the directory not UTF-8 (its wrong bytes become U+FFFD).
std::string FormatZeroConfig(const ZeroConfig& config);

// The same from and to a file. Saving replaces the file as a whole. Errors name
// the file; on an error of saving, the old file is untouched.
absl::StatusOr<ZeroConfig> LoadZeroConfig(const std::string& path);
absl::Status SaveZeroConfig(const ZeroConfig& config, const std::string& path);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CONFIG_ZERO_CONFIG_JSON_H_
