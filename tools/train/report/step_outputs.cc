#include "tools/train/report/step_outputs.h"

#include "base/status_macros.h"

namespace tessera::train {

absl::StatusOr<std::unique_ptr<StepOutputs>> StepOutputs::Open(
    const StepOutputsOptions& options) {
  const Settings& settings = options.settings;
  std::unique_ptr<StepOutputs> outputs(new StepOutputs(options));
  if (!settings.metrics.empty()) {
    TESSERA_ASSIGN_OR_RETURN(
        outputs->metrics_,
        MetricsFile::Open(UserPath(settings.metrics), options.first_step));
  }
  if (!settings.tensorboard.empty()) {
    TESSERA_ASSIGN_OR_RETURN(
        outputs->events_,
        EventFile::Create(UserPath(settings.tensorboard), options.first_step));
  }
  if (options.table != nullptr && !settings.quiet) {
    outputs->table_.emplace(*options.table,
                            LiveTableOptions{.is_terminal = options.is_terminal,
                                             .steps = settings.steps});
  }
  return outputs;
}

absl::Status StepOutputs::Add(const StepMetrics& step) {
  remaining_.Add(step);
  if (metrics_ != nullptr) {
    TESSERA_RETURN_IF_ERROR(metrics_->Add(step, ranks_));
  }
  if (events_ != nullptr) TESSERA_RETURN_IF_ERROR(events_->Add(step));
  if (table_) table_->Add(step, remaining_.Estimate());
  return absl::OkStatus();
}

void StepOutputs::EndLine() {
  if (table_) table_->Finish();
}

}  // namespace tessera::train
