#include "topology/config/internal/checks.h"

namespace tessera::topology::internal {

ConfigProblem SizeProblem(std::string_view field, int64_t given,
                          std::string_view allowed, int64_t value,
                          std::string_view remark) {
  return {.field = std::string(field),
          .given = absl::StrCat(given),
          .allowed = std::string(allowed),
          .fix = absl::StrCat("set ", field, " to ", value, remark),
          .replacement = absl::StrCat(value)};
}

ConfigProblems CheckLimits(ByteSize device_memory, absl::Duration timeout) {
  ConfigProblems problems;
  if (device_memory < ByteSize(0)) {
    problems.push_back({.field = "device_memory",
                        .given = device_memory.ToString(),
                        .allowed = "0 (no limit) or more, such as 80GiB",
                        .fix = "set device_memory to 0 or to what a device has",
                        .replacement = "0"});
  }
  if (timeout <= absl::ZeroDuration()) {
    problems.push_back({.field = "timeout",
                        .given = absl::FormatDuration(timeout),
                        .allowed = "more than 0s, or inf to wait for ever",
                        .fix = "set timeout to 30s",
                        .replacement = "30s"});
  }
  return problems;
}

}  // namespace tessera::topology::internal
