// StepOutputs: what rank 0 writes while a run goes on: the live table,
// metrics, scalars for TensorBoard, the HTML page and the file for Prometheus,
// as the settings name them.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto outputs,
//       StepOutputs::Open({.settings = settings, .first_step = 0, .ranks = 8,
//                          .table = &std::cerr}));
//   TESSERA_RETURN_IF_ERROR(outputs->Add(step));
//   outputs->EndLine();  // before others write to `table`
#ifndef TESSERA_TOOLS_TRAIN_REPORT_STEP_OUTPUTS_H_
#define TESSERA_TOOLS_TRAIN_REPORT_STEP_OUTPUTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/train/report/event_file.h"
#include "tools/train/report/live_table.h"
#include "tools/train/report/metrics_file.h"
#include "tools/train/report/prometheus_file.h"
#include "tools/train/report/remaining_time.h"
#include "tools/train/report/run_page.h"
#include "tools/train/report/run_result.h"
#include "tools/train/settings/run_options.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

struct StepOutputsOptions {
  Settings settings = {};
  int64_t first_step = 0;  // Not 0 if the run is resumed.
  int64_t ranks = 1;
  // For the page's picture of the schedule; not owned. Null: no picture.
  const RunOptions* run = nullptr;
  std::ostream* table = nullptr;  // For the live table; null: none.
  bool is_terminal = false;
};

// One thread at a time.
class StepOutputs {
 public:
  // Creates the files, or continues them if `first_step` is not 0. Errors name
  // the flag.
  static absl::StatusOr<std::unique_ptr<StepOutputs>> Open(
      const StepOutputsOptions& options);

  absl::Status Add(const StepMetrics& step);

  // The run continues with step `step` once more: the files keep the steps
  // before it.
  absl::Status GoBackTo(int64_t step);

  // Ends the current line of a terminal.
  void EndLine();

  // After the last step.
  absl::Status Finish();

 private:
  explicit StepOutputs(const StepOutputsOptions& options)
      : status_{.settings = options.settings, .ranks = options.ranks},
        remaining_(options.settings.steps, options.settings.eval_every > 0) {}

  absl::Status OpenFiles(int64_t first_step);

  RunStatus status_;
  RunPageOptions page_options_;
  RemainingTime remaining_;
  std::optional<LiveTable> table_;
  // Those that are not requested are empty.
  std::unique_ptr<MetricsFile> metrics_;
  std::unique_ptr<EventFile> events_;
  std::unique_ptr<RunPage> page_;
  std::optional<PrometheusFile> prometheus_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_STEP_OUTPUTS_H_
