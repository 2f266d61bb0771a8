#include "tools/train/report/metrics_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera::train {

namespace {

constexpr size_t kMostLineBytes = size_t{1} << 20;
constexpr int64_t kMostSteps = int64_t{1} << 62;

}  // namespace

std::string MetricsLine(const StepMetrics& step, int64_t ranks) {
  const StepRecord& record = step.record;
  const TimeShares& shares = step.shares;
  nlohmann::ordered_json line = {{"step", record.step},
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
  if (record.eval_loss) {
    line["eval_loss"] = *record.eval_loss;
    line["eval_perplexity"] = std::exp(*record.eval_loss);
  }
  return line.dump();
}

std::optional<int64_t> StepOfMetricsLine(std::string_view line) {
  const auto parsed = ParseJson(line, {.max_bytes = kMostLineBytes});
  if (!parsed.ok() || !parsed->is_object()) return std::nullopt;
  const auto step = parsed->find("step");
  if (step == parsed->end()) return std::nullopt;
  const std::optional<int64_t> number = JsonInteger(*step);
  return number >= 0 && number <= kMostSteps ? number : std::nullopt;
}

namespace {

constexpr int64_t kMostBytes = int64_t{1} << 32;

absl::Status Refusal(std::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(
      errno, absl::StrCat("--metrics=", path, " cannot be ", what));
}

// The lines of steps before `first_step`, each with its end.
std::string LinesBefore(std::string_view text, int64_t first_step) {
  std::string kept;
  for (std::string_view line : absl::StrSplit(text, '\n')) {
    const auto step = StepOfMetricsLine(line);
    if (step && *step < first_step) absl::StrAppend(&kept, line, "\n");
  }
  return kept;
}

absl::Status Rewrite(const std::string& path, int64_t first_step) {
  absl::StatusOr<std::string> text = first_step == 0
                                         ? absl::StatusOr<std::string>("")
                                         : ReadFile(path, kMostBytes);
  if (absl::IsNotFound(text.status())) text = "";
  if (!text.ok()) return text.status();
  return WriteFile(path, LinesBefore(*text, first_step));
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsFile>> MetricsFile::Open(
    const std::string& path, int64_t first_step) {
  TESSERA_RETURN_IF_ERROR(Rewrite(path, first_step),
                          Annotate(_, absl::StrCat("--metrics=", path)));
  const int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0) return Refusal("opened", path);
  return std::unique_ptr<MetricsFile>(new MetricsFile(path, fd));
}

absl::Status MetricsFile::Add(const StepMetrics& step, int64_t ranks) {
  const std::string line = MetricsLine(step, ranks) + "\n";
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = write(fd_.get(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Refusal("written", path_);
    rest.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace tessera::train
