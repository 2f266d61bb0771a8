// ParseJson: JSON documents of others, with every length bounded.
//
//   TESSERA_ASSIGN_OR_RETURN(nlohmann::json document,
//                            ParseJson(text, {.max_bytes = 1 << 20}));
//
// Source: RFC 8259, with the added rule that no key of an object comes twice.
#ifndef TESSERA_TOOLS_MODEL_FILES_PARSE_JSON_H_
#define TESSERA_TOOLS_MODEL_FILES_PARSE_JSON_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace tessera::model_files {

struct JsonLimits {
  size_t max_bytes = 0;
  size_t max_depth = 16;  // Objects and arrays inside each other.
};

// InvalidArgument where `text` is too long, nested too deep, no JSON or no
// UTF-8 (with the byte where that shows), or has a key twice in an object.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text,
                                         const JsonLimits& limits);

// The value for a message: "an object", "the string \"x\"", "1.5"; at most
// about 60 bytes.
std::string DescribeJson(const nlohmann::json& value);

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_PARSE_JSON_H_
