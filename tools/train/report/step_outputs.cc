#include "tools/train/report/step_outputs.h"

#include <string>
#include <utility>

#include "base/status_macros.h"
#include "pipeline/draw/exhibit.h"
#include "pipeline/draw/svg.h"
#include "pipeline/simulate/timeline.h"
#include "tools/train/predict/pipeline_plan.h"

namespace tessera::train {

namespace {

// The simulated step; "" for more ranks than a picture has.
absl::StatusOr<std::string> SchedulePicture(const RunOptions& run) {
  TESSERA_ASSIGN_OR_RETURN(const PipelinePlan plan, PipelinePlan::Create(run));
  TESSERA_ASSIGN_OR_RETURN(pipeline::Timeline timeline, PredictTimeline(plan));
  if (static_cast<int64_t>(timeline.ranks.size()) > pipeline::kMostDrawnRanks) {
    return std::string();
  }
  const pipeline::Exhibit exhibit = {
      .title = "predicted step, times in proportion to operations",
      .timeline = std::move(timeline)};
  return pipeline::DrawSvg({&exhibit, 1}, {.name = "GFLOP"});
}

absl::StatusOr<RunPageOptions> PageOptions(const StepOutputsOptions& options) {
  const Settings& settings = options.settings;
  RunPageOptions page = {.path = settings.html, .settings = settings};
  if (options.run == nullptr || settings.html.empty()) return page;
  page.parameters = options.run->model.ParameterCount();
  TESSERA_ASSIGN_OR_RETURN(page.schedule, SchedulePicture(*options.run),
                           Annotate(_, "--html: the schedule"));
  return page;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepOutputs>> StepOutputs::Open(
    const StepOutputsOptions& options) {
  const Settings& settings = options.settings;
  std::unique_ptr<StepOutputs> outputs(new StepOutputs(options));
  TESSERA_ASSIGN_OR_RETURN(outputs->page_options_, PageOptions(options));
  TESSERA_RETURN_IF_ERROR(outputs->OpenFiles(options.first_step));
  if (!settings.prometheus_file.empty()) {
    outputs->prometheus_.emplace(settings.prometheus_file);
    TESSERA_RETURN_IF_ERROR(outputs->prometheus_->Write(outputs->status_));
  }
  if (options.table != nullptr && !settings.quiet) {
    outputs->table_.emplace(*options.table,
                            LiveTableOptions{.is_terminal = options.is_terminal,
                                             .steps = settings.steps});
  }
  return outputs;
}

absl::Status StepOutputs::OpenFiles(int64_t first_step) {
  const Settings& settings = status_.settings;
  const std::string metrics = settings.metrics;
  if (!settings.metrics.empty()) {
    TESSERA_ASSIGN_OR_RETURN(metrics_, MetricsFile::Open(metrics, first_step));
  }
  if (!settings.tensorboard.empty()) {
    TESSERA_ASSIGN_OR_RETURN(
        events_, EventFile::Create(settings.tensorboard, first_step));
  }
  if (settings.html.empty()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(page_, RunPage::Open(page_options_));
  if (settings.metrics.empty()) return absl::OkStatus();
  return ReadMetrics(metrics, first_step,
                     [&](const auto& line) { page_->AddEarlier(line); });
}

absl::Status StepOutputs::GoBackTo(int64_t step) {
  EndLine();
  return OpenFiles(step);
}

absl::Status StepOutputs::Add(const StepMetrics& step) {
  remaining_.Add(step);
  status_.last = step;
  status_.remaining = remaining_.Estimate();
  status_.skipped_steps += step.record.skipped ? 1 : 0;
  if (step.record.eval_loss) status_.last_eval_loss = step.record.eval_loss;
  if (metrics_ != nullptr) {
    TESSERA_RETURN_IF_ERROR(metrics_->Add(step, status_.ranks));
  }
  if (events_ != nullptr) TESSERA_RETURN_IF_ERROR(events_->Add(step));
  if (page_ != nullptr) {
    TESSERA_RETURN_IF_ERROR(page_->Add(step, status_.remaining));
  }
  if (prometheus_) TESSERA_RETURN_IF_ERROR(prometheus_->WriteIfDue(status_));
  if (table_) table_->Add(step, status_.remaining);
  return absl::OkStatus();
}

void StepOutputs::EndLine() {
  if (table_) table_->Finish();
}

absl::Status StepOutputs::Finish() {
  EndLine();
  if (prometheus_) TESSERA_RETURN_IF_ERROR(prometheus_->Write(status_));
  return page_ == nullptr ? absl::OkStatus() : page_->Finish();
}

}  // namespace tessera::train
