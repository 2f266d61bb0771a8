#include "tools/train/report/metrics_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera::train {

namespace {

constexpr size_t kMostLineBytes = size_t{1} << 20;
constexpr int64_t kMostSteps = int64_t{1} << 62;

using Json = nlohmann::ordered_json;

// A key of JSON lines and column of CSV. `value` is null where the step does
// not have it; `set` takes NaN for numbers that a line does not have.
struct Column {
  std::string_view name;
  Json (*value)(const StepMetrics& step, int64_t ranks);
  void (*set)(double number, StepMetrics& step);
};

void Set(double number, double& value) { value = number; }
void Set(double number, int64_t& value) {
  constexpr double kMost = 1e18;
  value = number >= 0 && number <= kMost ? static_cast<int64_t>(number) : 0;
}
void Set(double number, bool& value) { value = number > 0; }

Json EvalLoss(const StepMetrics& step, int64_t) {
  return step.record.eval_loss ? Json(*step.record.eval_loss) : Json();
}
Json EvalPerplexity(const StepMetrics& step, int64_t) {
  return step.record.eval_loss ? Json(std::exp(*step.record.eval_loss))
                               : Json();
}
Json TestLoss(const StepMetrics& step, int64_t) {
  return step.record.test_loss ? Json(*step.record.test_loss) : Json();
}
Json ExpertImbalance(const StepMetrics& step, int64_t) {
  return step.record.expert_imbalance ? Json(*step.record.expert_imbalance)
                                      : Json();
}

Json Tokens(const StepMetrics& step, int64_t) {
  return step.record.tokens > 0 ? Json(step.record.tokens) : Json();
}
Json Rollbacks(const StepMetrics& step, int64_t) {
  return step.record.rollbacks > 0 ? Json(step.record.rollbacks) : Json();
}

// The value at a path of members.
#define TESSERA_COLUMN(name, member)                                          \
  Column {                                                                    \
    name, [](const StepMetrics& step, int64_t) { return Json(step.member); }, \
        [](double number, StepMetrics& step) { Set(number, step.member); }    \
  }

constexpr Column kColumns[] = {
    TESSERA_COLUMN("step", record.step),
    TESSERA_COLUMN("loss", record.loss),
    TESSERA_COLUMN("grad_norm", record.gradient_norm),
    TESSERA_COLUMN("lr", record.learning_rate),
    TESSERA_COLUMN("tokens_per_second", tokens_per_second),
    TESSERA_COLUMN("memory_bytes", memory_bytes),
    TESSERA_COLUMN("compute", shares.compute),
    TESSERA_COLUMN("communication", shares.communication),
    TESSERA_COLUMN("bubble", shares.bubble),
    TESSERA_COLUMN("offload", shares.offload),
    TESSERA_COLUMN("skipped", record.skipped),
    TESSERA_COLUMN("loss_scale", record.loss_scale),
    TESSERA_COLUMN("seconds", seconds),
    TESSERA_COLUMN("products", shares.products),
    TESSERA_COLUMN("optimizer", shares.optimizer),
    TESSERA_COLUMN("state_traffic", shares.state_traffic),
    TESSERA_COLUMN("state_hidden", shares.state_hidden),
    {"ranks", [](const StepMetrics&, int64_t ranks) { return Json(ranks); },
     [](double, StepMetrics&) {}},
    {"eval_loss", EvalLoss,
     [](double number, StepMetrics& step) {
       if (!std::isnan(number)) step.record.eval_loss = number;
     }},
    {"eval_perplexity", EvalPerplexity, [](double, StepMetrics&) {}},
    {"test_loss", TestLoss,
     [](double number, StepMetrics& step) {
       if (!std::isnan(number)) step.record.test_loss = number;
     }},
    {"expert_imbalance", ExpertImbalance,
     [](double number, StepMetrics& step) {
       if (!std::isnan(number)) step.record.expert_imbalance = number;
     }},
    {"tokens", Tokens,
     [](double number, StepMetrics& step) { Set(number, step.record.tokens); }},
    {"rollbacks", Rollbacks,
     [](double number, StepMetrics& step) {
       Set(number, step.record.rollbacks);
     }},
};

#undef TESSERA_COLUMN

// Null and numbers that are not finite are empty.
std::string CsvField(const Json& value) {
  std::string text = value.dump();
  return text == "null" ? "" : text;
}

std::string CsvLine(const StepMetrics& step, int64_t ranks) {
  return absl::StrJoin(kColumns, ",",
                       [&](std::string* out, const Column& column) {
                         out->append(CsvField(column.value(step, ranks)));
                       });
}

}  // namespace

MetricsFormat MetricsFormatOf(std::string_view path) {
  return absl::EndsWithIgnoreCase(path, ".csv") ? MetricsFormat::kCsv
                                                : MetricsFormat::kJson;
}

std::string MetricsCsvHeader() {
  return absl::StrJoin(
      kColumns, ",",
      [](std::string* out, const Column& column) { out->append(column.name); });
}

std::string MetricsLine(const StepMetrics& step, int64_t ranks,
                        MetricsFormat format) {
  if (format == MetricsFormat::kCsv) return CsvLine(step, ranks);
  Json line;
  for (const Column& column : kColumns) {
    Json value = column.value(step, ranks);
    if (!value.is_null()) line[column.name] = std::move(value);
  }
  return line.dump();
}

namespace {

std::optional<int64_t> ValidStep(std::optional<int64_t> number) {
  return number >= 0 && number <= kMostSteps ? number : std::nullopt;
}

// The first of as many fields as there are columns.
std::optional<int64_t> StepOfCsvLine(std::string_view line) {
  if (line.size() > kMostLineBytes) return std::nullopt;
  const auto commas = static_cast<size_t>(absl::c_count(line, ','));
  int64_t step = 0;
  if (commas + 1 != std::size(kColumns) ||
      !absl::SimpleAtoi(line.substr(0, line.find(',')), &step)) {
    return std::nullopt;
  }
  return ValidStep(step);
}

}  // namespace

std::optional<int64_t> StepOfMetricsLine(std::string_view line,
                                         MetricsFormat format) {
  if (format == MetricsFormat::kCsv) return StepOfCsvLine(line);
  const auto parsed = ParseJson(line, {.max_bytes = kMostLineBytes});
  if (!parsed.ok() || !parsed->is_object()) return std::nullopt;
  const auto step = parsed->find("step");
  if (step == parsed->end()) return std::nullopt;
  return ValidStep(JsonInteger(*step));
}

namespace {

constexpr int64_t kMostBytes = int64_t{1} << 32;

absl::Status Refusal(std::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(
      errno, absl::StrCat("--metrics=", path, " cannot be ", what));
}

// The lines of steps before `first_step`, each with its end.
std::string LinesBefore(std::string_view text, int64_t first_step,
                        MetricsFormat format) {
  std::string kept;
  for (std::string_view line : absl::StrSplit(text, '\n')) {
    const auto step = StepOfMetricsLine(line, format);
    if (step && *step < first_step) absl::StrAppend(&kept, line, "\n");
  }
  return kept;
}

absl::Status CheckColumns(std::string_view text) {
  const std::string_view first = text.substr(0, text.find('\n'));
  if (text.empty() || first == MetricsCsvHeader()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("it has other columns, ",
                                                    Quoted(first.substr(0, 60)),
                                                    "; give another file"));
}

absl::Status Rewrite(const std::string& path, int64_t first_step) {
  absl::StatusOr<std::string> text = first_step == 0
                                         ? absl::StatusOr<std::string>("")
                                         : ReadFile(path, kMostBytes);
  if (absl::IsNotFound(text.status())) text = "";
  if (!text.ok()) return text.status();
  const MetricsFormat format = MetricsFormatOf(path);
  std::string header;
  if (format == MetricsFormat::kCsv) {
    TESSERA_RETURN_IF_ERROR(CheckColumns(*text));
    header = MetricsCsvHeader() + "\n";
  }
  return WriteFile(path, header + LinesBefore(*text, first_step, format));
}

}  // namespace

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double NumberOf(const nlohmann::json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  return value.is_number() ? value.get<double>() : kNone;
}

double NumberOf(std::string_view field) {
  double number = kNone;
  if (field == "true") return 1;
  if (field == "false") return 0;
  return absl::SimpleAtod(field, &number) ? number : kNone;
}

// `line` has a valid step.
StepMetrics StepIn(std::string_view line, MetricsFormat format) {
  StepMetrics step;
  if (format == MetricsFormat::kCsv) {
    size_t column = 0;
    for (const std::string_view field : absl::StrSplit(line, ',')) {
      kColumns[column++].set(NumberOf(field), step);
    }
    return step;
  }
  const auto parsed = ParseJson(line, {.max_bytes = kMostLineBytes});
  for (const Column& column : kColumns) {
    const auto found = parsed->find(column.name);
    column.set(found == parsed->end() ? kNone : NumberOf(*found), step);
  }
  return step;
}

}  // namespace

absl::Status ReadMetrics(const std::string& path, int64_t first_step,
                         absl::FunctionRef<void(const StepMetrics&)> add) {
  if (first_step == 0) return absl::OkStatus();
  const absl::StatusOr<std::string> text = ReadFile(path, kMostBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return text.status();
  const MetricsFormat format = MetricsFormatOf(path);
  for (const std::string_view line : absl::StrSplit(*text, '\n')) {
    const auto step = StepOfMetricsLine(line, format);
    if (step && *step < first_step) add(StepIn(line, format));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MetricsFile>> MetricsFile::Open(
    const std::string& path, int64_t first_step) {
  TESSERA_RETURN_IF_ERROR(Rewrite(path, first_step),
                          Annotate(_, absl::StrCat("--metrics=", path)));
  const int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0) return Refusal("opened", path);
  return std::unique_ptr<MetricsFile>(new MetricsFile(path, fd));
}

absl::Status MetricsFile::Add(const StepMetrics& step, int64_t ranks) {
  const std::string line = MetricsLine(step, ranks, format_) + "\n";
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
