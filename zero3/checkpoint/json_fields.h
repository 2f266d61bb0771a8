// JsonFields: typed values of an untrusted JSON object, by key.
//
//   JsonFields fields(object, "part 0");
//   int64_t stage = fields.Integer("stage", 0, 3);
//   ...
//   TESSERA_RETURN_IF_ERROR(fields.status());
//
// The first mistake is kept in status(), and what is returned then is some
// allowed value: check once, at the end.
#ifndef TESSERA_ZERO3_CHECKPOINT_JSON_FIELDS_H_
#define TESSERA_ZERO3_CHECKPOINT_JSON_FIELDS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace tessera::zero3 {

using Json = nlohmann::ordered_json;

// A document of at most `max_depth` nested arrays and objects; InvalidArgument
// with the place otherwise.
absl::StatusOr<Json> ParseJson(std::string_view text, int max_depth);

class JsonFields {
 public:
  // `json` outlives this; `where` is what messages call it.
  JsonFields(const Json& json, std::string where);

  int64_t Integer(std::string_view key, int64_t least, int64_t most);
  double Number(std::string_view key);
  bool Boolean(std::string_view key);
  std::string Text(std::string_view key);
  uint32_t Hex32(std::string_view key);
  // Never null; empty where there is a mistake.
  const Json& Array(std::string_view key);
  const Json& Object(std::string_view key);

  // Where a value was read, but cannot be.
  void Refuse(std::string_view key, std::string_view why);
  const absl::Status& status() const { return status_; }

 private:
  const Json* Get(std::string_view key, Json::value_t type);

  const Json& json_;
  const std::string where_;
  absl::Status status_;
};

// "0a1b2c3d".
std::string FormatHex32(uint32_t value);
absl::StatusOr<uint32_t> ParseHex32(std::string_view text);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_JSON_FIELDS_H_
