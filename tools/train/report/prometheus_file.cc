#include "tools/train/report/prometheus_file.h"

#include <cmath>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/train/report/metrics_file.h"

namespace tessera::train {
namespace {

// A label's value in quotes. Control characters and bytes that are not UTF-8
// are replaced.
std::string LabelText(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n') c = '?';
  }
  // The remaining characters need only the escapes that the format shares with
  // JSON: \\ \" \n.
  return DumpJson(nlohmann::json(text));
}

std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return absl::StrFormat("%.17g", value);
}

// Appends metrics with the prefix tessera_train_.
class Exposition {
 public:
  void Begin(std::string_view name, std::string_view help,
             std::string_view type = "gauge") {
    name_ = absl::StrCat("tessera_train_", name);
    absl::StrAppend(&text_, "# HELP ", name_, " ", help, "\n# TYPE ", name_,
                    " ", type, "\n");
  }
  // `labels` such as {activity="bubble"}.
  void Sample(double value, std::string_view labels = "") {
    absl::StrAppend(&text_, name_, labels, " ", NumberText(value), "\n");
  }
  void Add(std::string_view name, double value, std::string_view help,
           std::string_view type = "gauge") {
    Begin(name, help, type);
    Sample(value);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string name_;
  std::string text_;
};

void AddStep(const StepMetrics& step, Exposition& out) {
  struct Gauge {
    std::string_view name, key, help;  // `key` of MetricsOf.
  };
  constexpr Gauge kGauges[] = {
      {"loss", "loss", "Mean loss over the tokens of the last step."},
      {"gradient_norm", "grad_norm", "Norm of all gradients before clipping."},
      {"learning_rate", "lr", "Learning rate of the last step."},
      {"loss_scale", "loss_scale", "Factor on the loss."},
      {"expert_imbalance", "expert_imbalance",
       "Tokens of the busiest expert over the mean of its layer."},
      {"max_attention_score", "max_attention_score",
       "Largest score of attention before the softmax."},
      {"step_seconds", "seconds", "Time of the last step."},
      {"tokens_per_second", "tokens_per_second",
       "Throughput of the last step over all ranks."},
      {"memory_bytes", "memory_bytes", "Largest resident size of a rank."}};
  const nlohmann::json values = MetricsOf(step);
  for (const auto& [name, key, help] : kGauges) {
    const nlohmann::json& value = values[key];
    if (value.is_number()) out.Add(name, value, help);
  }
  out.Begin("time_share", "Share of the last step, the mean over ranks.");
  for (const char* const key :
       {"compute", "communication", "bubble", "offload"}) {
    out.Sample(values[key], absl::StrCat("{activity=\"", key, "\"}"));
  }
  if (step.slowest.empty()) return;
  const auto label = [](const Straggler& one) {
    return absl::StrCat("{section=\"", SectionName(one.section), "\"}");
  };
  out.Begin("slowest_rank", "Slowest rank of the last steps, by section.");
  for (const Straggler& one : step.slowest) {
    out.Sample(static_cast<double>(one.rank), label(one));
  }
  out.Begin("slowest_ratio", "Its time over the median of its peers.");
  for (const Straggler& one : step.slowest) out.Sample(one.ratio, label(one));
}

}  // namespace

std::string PrometheusText(const RunStatus& status) {
  const Settings& settings = status.settings;
  const StepRecord last =
      status.last ? status.last->record : StepRecord{.step = -1};
  Exposition out;
  out.Begin("info", "Always 1; the labels describe the run.");
  out.Sample(1, absl::StrCat("{model=", LabelText(settings.model), ",mesh=",
                             LabelText(settings.parallel.mesh.ToFlag()),
                             ",engine=", LabelText(settings.engine), "}"));
  out.Add("ranks", static_cast<double>(status.ranks), "Number of ranks.");
  out.Add("steps", static_cast<double>(settings.steps),
          "Steps of the whole run.");
  out.Add("steps_done", static_cast<double>(last.step + 1),
          "Steps that are done, including those before a resumption.");
  out.Add("skipped_steps_total", static_cast<double>(status.skipped_steps),
          "Steps whose gradients were not finite.", "counter");
  out.Add("rollbacks_total", static_cast<double>(last.rollbacks),
          "Returns to a checkpoint because of a spike of the loss.", "counter");
  if (status.last) AddStep(*status.last, out);
  if (status.last_eval_loss) {
    out.Add("validation_loss", *status.last_eval_loss,
            "Mean loss of the last validation.");
  }
  if (status.remaining) {
    out.Add("remaining_seconds", absl::ToDoubleSeconds(status.remaining->time),
            "Estimated time until the last step.");
  }
  return out.Take();
}

absl::Status PrometheusFile::Write(const RunStatus& status) {
  TESSERA_RETURN_IF_ERROR(
      WriteFile(path_, PrometheusText(status)),
      Annotate(_, absl::StrCat("--prometheus_file=", path_)));
  written_ = now_();
  return absl::OkStatus();
}

absl::Status PrometheusFile::WriteIfDue(const RunStatus& status) {
  return now_() - written_ < kInterval ? absl::OkStatus() : Write(status);
}

}  // namespace tessera::train
