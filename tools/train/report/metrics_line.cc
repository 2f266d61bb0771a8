#include "tools/train/report/metrics_line.h"

#include "nlohmann/json.hpp"
#include "tools/model_files/parse_json.h"

namespace tessera::train {
namespace {

constexpr size_t kMostLineBytes = size_t{1} << 20;
constexpr uint64_t kMostSteps = uint64_t{1} << 62;

}  // namespace

std::string MetricsLine(const StepResult& step, int64_t ranks) {
  const StepRecord& record = step.record;
  const TimeShares& shares = step.shares;
  const nlohmann::ordered_json line = {
      {"step", record.step},
      {"loss", record.loss},
      {"grad_norm", record.gradient_norm},
      {"lr", record.learning_rate},
      {"tokens_per_second", step.tokens_per_second},
      {"memory_bytes", step.memory_bytes},
      {"compute", shares.compute},
      {"communication", shares.communication},
      {"bubble", shares.bubble},
      {"offload", shares.offload},
      {"skipped", record.skipped},
      {"loss_scale", record.loss_scale},
      {"seconds", step.seconds},
      {"products", shares.products},
      {"optimizer", shares.optimizer},
      {"state_traffic", shares.state_traffic},
      {"state_hidden", shares.state_hidden},
      {"ranks", ranks}};
  return line.dump();
}

std::optional<int64_t> StepOfMetricsLine(std::string_view line) {
  const auto parsed =
      model_files::ParseJson(line, {.max_bytes = kMostLineBytes});
  if (!parsed.ok() || !parsed->is_object()) return std::nullopt;
  const auto step = parsed->find("step");
  if (step == parsed->end() || !step->is_number_unsigned()) return std::nullopt;
  const auto number = step->get<uint64_t>();
  if (number > kMostSteps) return std::nullopt;
  return static_cast<int64_t>(number);
}

}  // namespace tessera::train
