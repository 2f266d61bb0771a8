// JsonDocument: what a schedule's JSON text says, before it is made a schedule.
#ifndef TESSERA_PIPELINE_SCHEDULE_JSON_DOCUMENT_H_
#define TESSERA_PIPELINE_SCHEDULE_JSON_DOCUMENT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/schedule/action.h"

namespace tessera::pipeline {

// The most bytes of a schedule's name that are read.
inline constexpr size_t kMostNameBytes = 256;

struct JsonDocument {
  std::string name;
  int64_t stages = 0;
  int64_t microbatches = 0;
  std::vector<int32_t> rank_of;
  bool two_way = false;
  std::vector<std::vector<Action>> ranks;
};

// Every value is in its own bounds, but they need not fit each other. Errors as
// ReadJson.
absl::StatusOr<JsonDocument> ParseJsonDocument(std::string_view text);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SCHEDULE_JSON_DOCUMENT_H_
