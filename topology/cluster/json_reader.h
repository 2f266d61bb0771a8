// JsonReader: takes typed fields out of a JSON object and notes what is wrong.
//
//   JsonProblems problems;
//   JsonReader host(value, "hosts[3]", problems);
//   int64_t count = host.Integer("count", 1, 1, kMaxHosts);
//   host.RefuseOtherKeys();
//   TESSERA_RETURN_IF_ERROR(problems.ToStatus("cluster"));
//
// A field that is missing gives the fallback; one that is of the wrong type or
// out of range gives the fallback and a problem that names its path.
#ifndef TESSERA_TOPOLOGY_CLUSTER_JSON_READER_H_
#define TESSERA_TOPOLOGY_CLUSTER_JSON_READER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace tessera::topology {

// Problems in the order in which they were found. Keeps the first 20 and counts
// the rest.
class JsonProblems {
 public:
  void Add(std::string problem);
  bool empty() const { return count_ == 0; }

  // OK where there is none; else InvalidArgument that lists them behind `what`.
  absl::Status ToStatus(std::string_view what) const;

 private:
  std::vector<std::string> lines_;
  int64_t count_ = 0;
};

class JsonReader {
 public:
  // Reads `value`, which lies at `path` ("" for the whole text). A value that
  // is no object is a problem, and then every field is missing. Keeps
  // references: `value` and `problems` must outlive it.
  JsonReader(const nlohmann::json& value, std::string path,
             JsonProblems& problems);

  // The path of a field: "hosts[3].count".
  std::string PathOf(std::string_view key) const;

  int64_t Integer(std::string_view key, int64_t fallback, int64_t low,
                  int64_t high);
  // Finite and at least 0.
  double Number(std::string_view key, double fallback);
  std::string Text(std::string_view key, std::string fallback);
  // The element, or null where it is missing or of another type than asked.
  const nlohmann::json* Array(std::string_view key);
  const nlohmann::json* Object(std::string_view key);

  bool Has(std::string_view key) const;

  // A problem for a key that none of the calls above has asked for.
  void RefuseOtherKeys();

  // "\"two\"", "null", "an object": a value in a message, shortened.
  static std::string Shown(const nlohmann::json& value);

 private:
  const nlohmann::json* Find(std::string_view key);
  void Wrong(std::string_view key, const nlohmann::json& value,
             std::string_view allowed);

  const nlohmann::json* object_ = nullptr;
  std::string path_;
  JsonProblems& problems_;
  std::vector<std::string_view> asked_;
};

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CLUSTER_JSON_READER_H_
