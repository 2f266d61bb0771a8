// MetricsFile: a line of JSON for each step, in a file that may be read while
// it grows.
//
//   TESSERA_ASSIGN_OR_RETURN(auto file, MetricsFile::Open("run.jsonl", 0));
//   TESSERA_RETURN_IF_ERROR(file->Add(step, ranks));
#ifndef TESSERA_TOOLS_TRAIN_REPORT_METRICS_FILE_H_
#define TESSERA_TOOLS_TRAIN_REPORT_METRICS_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "tools/train/loop/run_result.h"

namespace tessera::train {

class MetricsFile {
 public:
  // Makes the file, or takes up one whose lines of steps before `first_step`
  // stay; lines of later steps, and what is no step's, go: all at once, so
  // that no reader sees half. What the file system says, with the flag.
  static absl::StatusOr<std::unique_ptr<MetricsFile>> Open(
      const std::string& path, int64_t first_step);

  // Appends a line, in one piece.
  absl::Status Add(const StepResult& step, int64_t ranks);

 private:
  MetricsFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  const std::string path_;
  const UniqueFd fd_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_METRICS_FILE_H_
