// MetricsFile: one line of JSON or CSV per step, in a file that may be read
// while it grows.
//
//   TESSERA_ASSIGN_OR_RETURN(auto file, MetricsFile::Open("run.jsonl", 0));
//   TESSERA_RETURN_IF_ERROR(file->Add(step, ranks));
//
//   {"step":7,"loss":3.25,"grad_norm":0.5,"lr":0.003,"tokens_per_second":9000,
//    "memory_bytes":1048576,"compute":0.7,"communication":0.1,"bubble":0.1,
//    "offload":0.1,...}
//
// These ten keys are stable; docs/metrics.md lists the others. The shares
// compute, communication, bubble and offload add up to 1. Steps count from 0.
//
// A file whose name ends in ".csv" has a column per key instead, under a line
// of their names; fields without a value are empty.
#ifndef TESSERA_TOOLS_TRAIN_REPORT_METRICS_FILE_H_
#define TESSERA_TOOLS_TRAIN_REPORT_METRICS_FILE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "nlohmann/json.hpp"
#include "tools/train/report/run_result.h"

namespace tessera::train {

enum class MetricsFormat { kJson, kCsv };

// By the ending of the name, in either case.
MetricsFormat MetricsFormatOf(std::string_view path);

// The values of a line by key, all but `ranks`, for the other outputs of a
// step. Numbers may be NaN or infinite; values that the step does not have are
// null.
nlohmann::json MetricsOf(const StepMetrics& step);

// One line without a line feed. Numbers round-trip exactly; numbers that are
// not finite become null, and in CSV an empty field.
std::string MetricsLine(const StepMetrics& step, int64_t ranks,
                        MetricsFormat format = MetricsFormat::kJson);

// The first line of a CSV file, without a line feed.
std::string MetricsCsvHeader();

// The step of a line; nullopt if it has no valid `step`. Accepts any line.
std::optional<int64_t> StepOfMetricsLine(
    std::string_view line, MetricsFormat format = MetricsFormat::kJson);

// Calls `add` with the values of each line that has a step before `first_step`,
// in the order of the file; other and invalid lines are skipped. Only `step` is
// checked. Without a file there are no lines. Errors of the file system.
absl::Status ReadMetrics(const std::string& path, int64_t first_step,
                         absl::FunctionRef<void(const nlohmann::json&)> add);

// Writes all of `bytes` at the file's end, with one write if the system allows.
// ErrnoToStatus with `context` otherwise.
absl::Status Append(const UniqueFd& fd, std::string_view bytes,
                    std::string_view context);

class MetricsFile {
 public:
  // Creates the file, or continues one: keeps its lines of steps before
  // `first_step` and atomically drops lines of later steps and invalid lines.
  // A device or pipe gets the lines of the new steps only. Errors of the file
  // system with the flag; FailedPrecondition if a CSV file to continue has
  // other columns.
  static absl::StatusOr<std::unique_ptr<MetricsFile>> Open(
      const std::string& path, int64_t first_step);

  absl::Status Add(const StepMetrics& step, int64_t ranks);

 private:
  MetricsFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  const std::string path_;
  const UniqueFd fd_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_METRICS_FILE_H_
