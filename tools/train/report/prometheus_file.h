// PrometheusFile: the newest metrics of a run in a file for the textfile
// collector of Prometheus' node_exporter.
//
//   PrometheusFile file("/var/lib/node_exporter/train.prom");
//   TESSERA_RETURN_IF_ERROR(file.Write(status));       // now
//   TESSERA_RETURN_IF_ERROR(file.WriteIfDue(status));  // after each step
//
// The file is replaced as a whole each time, so that the collector never reads
// a part of it. Source: Prometheus, Exposition formats, version 0.0.4 of the
// text format.
#ifndef TESSERA_TOOLS_TRAIN_REPORT_PROMETHEUS_FILE_H_
#define TESSERA_TOOLS_TRAIN_REPORT_PROMETHEUS_FILE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tools/train/report/remaining_time.h"
#include "tools/train/report/run_result.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// The state of a run to expose.
struct RunStatus {
  Settings settings = {};
  int64_t ranks = 1;
  int64_t skipped_steps = 0;  // Since the process began.
  std::optional<StepMetrics> last = {};
  std::optional<double> last_eval_loss = {};
  std::optional<RemainingEstimate> remaining = {};
};

// The text format: for each metric a line of help, its type and its samples.
// Metrics without a value yet are left out.
std::string PrometheusText(const RunStatus& status);

class PrometheusFile {
 public:
  // The collector reads the file less often.
  static constexpr absl::Duration kInterval = absl::Seconds(5);

  explicit PrometheusFile(std::string path,
                          std::function<absl::Time()> now = absl::Now)
      : path_(std::move(path)), now_(std::move(now)) {}

  // Errors of the file system with the flag.
  absl::Status Write(const RunStatus& status);

  // Writes unless the last Write is less than kInterval ago.
  absl::Status WriteIfDue(const RunStatus& status);

 private:
  const std::string path_;
  const std::function<absl::Time()> now_;
  absl::Time written_ = absl::InfinitePast();
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_PROMETHEUS_FILE_H_
