// Reads JSON from external sources: ParseJson bounds the text, JsonReader reads
// typed fields of an object and collects all problems.
//
//   TESSERA_ASSIGN_OR_RETURN(const nlohmann::json document,
//                            ParseJson(text, {.max_bytes = 1 << 20}));
//   JsonProblems problems;
//   JsonReader reader(document, "", problems);
//   const int64_t steps = reader.Integer("steps", 1, kMaxSteps);
//   const std::string name = reader.TextOr("name", "run");
//   reader.RefuseOtherKeys();
//   TESSERA_RETURN_IF_ERROR(problems.ToStatus("settings"));
//
// Include nlohmann/json.hpp in the source that uses the documents: this header
// only declares them. Source: RFC 8259; duplicate keys are errors here, unless
// JsonDialect::kPython is given.
#ifndef TESSERA_BASE_JSON_JSON_H_
#define TESSERA_BASE_JSON_JSON_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace tessera {

// kStrict is for configurations. kPython also accepts the other texts that
// Python's json module reads, for data that others have written: the last of
// equal keys counts; NaN, Infinity, -Infinity and numbers that exceed the range
// of a double become null; half of a surrogate pair becomes U+FFFD.
enum class JsonDialect { kStrict, kPython };

struct JsonLimits {
  size_t max_bytes = size_t{64} << 20;
  size_t max_depth = 16;  // Nested objects and arrays.
  JsonDialect dialect = JsonDialect::kStrict;
};

// InvalidArgument, never an exception, if `text` exceeds `limits`, is not JSON
// in UTF-8 (the message has byte, line and column), or, in the strict dialect,
// repeats a key of an object. The nesting is bounded while the text is parsed.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text,
                                         const JsonLimits& limits = {});

// Rewrites the beginning of a text of JsonDialect::kPython, except for repeated
// keys, in the strict dialect. Invalid texts stay invalid.
std::string StrictJson(std::string_view text);

// The text of a value, with U+FFFD in place of bytes that are not UTF-8, so
// that it is valid JSON for any file name. `indent` spaces per level; -1: one
// line.
std::string DumpJson(const nlohmann::json& value, int indent = -1);
std::string DumpJson(const nlohmann::ordered_json& value, int indent = -1);

// A value for a message: "an object", "\"x\"", "1.5"; strings are truncated to
// 100 bytes.
std::string DescribeJson(const nlohmann::json& value);

// The value if it is an integer from -2^63 to 2^63-1.
std::optional<int64_t> JsonInteger(const nlohmann::json& value);

// Problems in the order in which they were found. Keeps the first 20 and counts
// the rest.
class JsonProblems {
 public:
  void Add(std::string problem);
  bool empty() const { return count_ == 0; }

  // OK if there are no problems; else InvalidArgument that lists them after
  // `what`.
  absl::Status ToStatus(std::string_view what) const;

 private:
  std::vector<std::string> lines_;
  int64_t count_ = 0;
};

// Typed fields of one object. A field of the wrong type or out of range adds a
// problem that names its path, such as "hosts[3].count is -1; use a whole
// number from 1 to 8", and returns a default value. Read all fields first and
// check the problems once.
class JsonReader {
 public:
  // Reads `value`, found at `path` ("" for the whole text). A value that is not
  // an object adds one problem; reading its fields then adds no more. Keeps
  // references: `value`, `problems` and the keys must outlive the reader.
  JsonReader(const nlohmann::json& value, std::string path,
             JsonProblems& problems);

  // The path of a field: "hosts[3].count".
  std::string PathOf(std::string_view key) const;
  bool Has(std::string_view key) const;

  // Required fields: a missing one adds a problem. Default values: `low`, 0,
  // false, "", empty.
  int64_t Integer(std::string_view key, int64_t low, int64_t high);
  std::vector<int64_t> Integers(std::string_view key, int64_t low,
                                int64_t high);
  double Number(std::string_view key);
  std::vector<double> Numbers(std::string_view key);
  bool Boolean(std::string_view key);
  std::string Text(std::string_view key);
  const nlohmann::json& Array(std::string_view key);
  const nlohmann::json& Object(std::string_view key);
  // A reader of the object `key`. If that is missing or not an object, reading
  // its fields adds no further problems.
  JsonReader Child(std::string_view key);

  // Optional fields: a missing or invalid one yields `fallback`.
  int64_t IntegerOr(std::string_view key, int64_t fallback, int64_t low,
                    int64_t high);
  // At least `low`.
  double NumberOr(std::string_view key, double fallback, double low);
  std::string TextOr(std::string_view key, std::string fallback);

  // Null if the field is missing or has another type, which adds a problem.
  const nlohmann::json* Find(std::string_view key);
  const nlohmann::json* FindArray(std::string_view key);
  const nlohmann::json* FindObject(std::string_view key);

  // Adds the problem "PATH: WHY" for a field that was read.
  void Refuse(std::string_view key, std::string_view why);

  // Adds a problem for each key that no call above has read.
  void RefuseOtherKeys();

 private:
  JsonReader(const nlohmann::json* object, std::string path,
             JsonProblems& problems);

  // Like Find, but a missing field is a problem.
  const nlohmann::json* Need(std::string_view key, std::string_view allowed);
  void Wrong(const std::string& path, const nlohmann::json& value,
             std::string_view allowed);
  bool ReadInteger(const nlohmann::json& value, const std::string& path,
                   int64_t low, int64_t high, int64_t& result);
  bool ReadNumber(const nlohmann::json& value, const std::string& path,
                  double low, double& result);

  const nlohmann::json* object_ = nullptr;
  std::string path_;
  JsonProblems& problems_;
  std::vector<std::string_view> asked_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_JSON_JSON_H_
