#include "tools/train/report/metrics_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/quoted.h"
#include "base/status_macros.h"

namespace tessera::train {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMostLineBytes = size_t{1} << 20;
constexpr int64_t kMostBytes = int64_t{1} << 32;
constexpr int64_t kMostSteps = int64_t{1} << 62;

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

OrderedJson OrNull(const std::optional<double>& value) {
  return value ? OrderedJson(*value) : OrderedJson();
}

OrderedJson NullIfZero(int64_t value) {
  return value > 0 ? OrderedJson(value) : OrderedJson();
}

// Null with --objective=dpo, whose losses are those of pairs.
OrderedJson PerplexityOf(const StepRecord& record) {
  return record.eval_loss && !record.reward_chosen
             ? OrderedJson(std::exp(*record.eval_loss))
             : OrderedJson();
}

OrderedJson MarginOf(const StepRecord& record) {
  return record.reward_chosen && record.reward_rejected
             ? OrderedJson(*record.reward_chosen - *record.reward_rejected)
             : OrderedJson();
}

// The slowest rank of each section and its ratio; null if there is none.
void AddSlowest(const StepMetrics& step, OrderedJson& json) {
  for (size_t i = 0; i < kSectionNames.size(); ++i) {
    OrderedJson rank, ratio;
    for (const Straggler& one : step.slowest) {
      if (one.section != static_cast<Section>(i)) continue;
      rank = one.rank;
      ratio = one.ratio;
    }
    json[absl::StrCat(kSectionNames[i], "_slowest_rank")] = std::move(rank);
    json[absl::StrCat(kSectionNames[i], "_slowest_ratio")] = std::move(ratio);
  }
}

// Every key, in the order of CSV's columns; null if the step has no value.
OrderedJson AllMetricsOf(const StepMetrics& step, int64_t ranks) {
  const StepRecord& record = step.record;
  const TimeShares& shares = step.shares;
  OrderedJson json = {
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
      {"ranks", ranks},
      {"eval_loss", OrNull(record.eval_loss)},
      {"eval_perplexity", PerplexityOf(record)},
      {"test_loss", OrNull(record.test_loss)},
      {"expert_imbalance", OrNull(record.expert_imbalance)},
      {"max_attention_score", OrNull(record.max_attention_score)},
      {"reward_chosen", OrNull(record.reward_chosen)},
      {"reward_rejected", OrNull(record.reward_rejected)},
      {"reward_margin", MarginOf(record)},
      {"reward_accuracy", OrNull(record.reward_accuracy)},
      {"tokens", NullIfZero(record.tokens)},
      {"rollbacks", NullIfZero(record.rollbacks)},
      {"data", shares.data}};
  AddSlowest(step, json);
  return json;
}

const std::vector<std::string>& Columns() {
  static const auto* const columns = [] {
    auto* const names = new std::vector<std::string>;
    const OrderedJson all = AllMetricsOf({}, 1);
    for (const auto& [key, value] : all.items()) names->push_back(key);
    return names;
  }();
  return *columns;
}

// Null and numbers that are not finite are empty.
std::string CsvLine(const OrderedJson& all) {
  return absl::StrJoin(all, ",", [](std::string* out, const auto& value) {
    const std::string text = DumpJson(value);
    if (text != "null") out->append(text);
  });
}

std::string JsonLine(const OrderedJson& all) {
  OrderedJson line;
  for (const auto& [key, value] : all.items()) {
    if (!value.is_null()) line[key] = value;
  }
  return DumpJson(line);
}

// Null if `text` is no JSON.
Json ParseValue(std::string_view text) {
  return ParseJson(text, {.max_bytes = kMostLineBytes}).value_or(nullptr);
}

// Null without a field for each column.
Json ParseCsv(std::string_view line) {
  const std::vector<std::string_view> fields = absl::StrSplit(line, ',');
  if (fields.size() != Columns().size()) return nullptr;
  Json values;
  for (size_t i = 0; i < fields.size(); ++i) {
    values[Columns()[i]] = ParseValue(fields[i]);
  }
  return values;
}

struct ParsedLine {
  int64_t step = 0;
  Json values;
};

// nullopt without a valid step.
std::optional<ParsedLine> ParseLine(std::string_view line,
                                    MetricsFormat format) {
  if (line.size() > kMostLineBytes) return std::nullopt;
  Json values =
      format == MetricsFormat::kCsv ? ParseCsv(line) : ParseValue(line);
  if (!values.is_object() || !values.contains("step")) return std::nullopt;
  const std::optional<int64_t> step = JsonInteger(values["step"]);
  if (!step || *step < 0 || *step > kMostSteps) return std::nullopt;
  return ParsedLine{*step, std::move(values)};
}

}  // namespace

MetricsFormat MetricsFormatOf(std::string_view path) {
  return absl::EndsWithIgnoreCase(path, ".csv") ? MetricsFormat::kCsv
                                                : MetricsFormat::kJson;
}

Json MetricsOf(const StepMetrics& step) {
  Json values(AllMetricsOf(step, 1));
  values.erase("ranks");
  return values;
}

std::string MetricsCsvHeader() { return absl::StrJoin(Columns(), ","); }

std::string MetricsLine(const StepMetrics& step, int64_t ranks,
                        MetricsFormat format) {
  const OrderedJson all = AllMetricsOf(step, ranks);
  return format == MetricsFormat::kCsv ? CsvLine(all) : JsonLine(all);
}

std::optional<int64_t> StepOfMetricsLine(std::string_view line,
                                         MetricsFormat format) {
  const std::optional<ParsedLine> parsed = ParseLine(line, format);
  return parsed ? std::optional(parsed->step) : std::nullopt;
}

namespace {

// False for devices and pipes, whose lines cannot be read or dropped.
bool HoldsLines(const std::string& path) {
  std::error_code error;
  return !fs::is_other(path, error);
}

// The file's bytes; none if it does not exist, is a device or pipe, or no step
// is before `first_step`.
absl::StatusOr<std::string> ReadIfAny(const std::string& path,
                                      int64_t first_step) {
  if (first_step == 0 || !HoldsLines(path)) return "";
  absl::StatusOr<std::string> text = ReadFile(path, kMostBytes);
  if (absl::IsNotFound(text.status())) return "";
  return text;
}

// The lines of steps before `first_step`, each with its end.
std::string LinesBefore(std::string_view text, int64_t first_step,
                        MetricsFormat format) {
  std::string kept;
  for (const std::string_view line : absl::StrSplit(text, '\n')) {
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
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadIfAny(path, first_step));
  const MetricsFormat format = MetricsFormatOf(path);
  std::string header;
  if (format == MetricsFormat::kCsv) {
    TESSERA_RETURN_IF_ERROR(CheckColumns(text));
    header = MetricsCsvHeader() + "\n";
  }
  return WriteFile(path, header + LinesBefore(text, first_step, format));
}

}  // namespace

absl::Status ReadMetrics(const std::string& path, int64_t first_step,
                         absl::FunctionRef<void(const Json&)> add) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadIfAny(path, first_step));
  const MetricsFormat format = MetricsFormatOf(path);
  for (const std::string_view line : absl::StrSplit(text, '\n')) {
    const std::optional<ParsedLine> parsed = ParseLine(line, format);
    if (parsed && parsed->step < first_step) add(parsed->values);
  }
  return absl::OkStatus();
}

absl::Status Append(const UniqueFd& fd, std::string_view bytes,
                    std::string_view context) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return absl::ErrnoToStatus(errno, context);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MetricsFile>> MetricsFile::Open(
    const std::string& path, int64_t first_step) {
  const bool holds_lines = HoldsLines(path);
  if (holds_lines) {
    TESSERA_RETURN_IF_ERROR(Rewrite(path, first_step),
                            Annotate(_, absl::StrCat("--metrics=", path)));
  }
  const int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("--metrics=", path, " cannot be opened"));
  }
  std::unique_ptr<MetricsFile> file(new MetricsFile(path, fd));
  if (!holds_lines && MetricsFormatOf(path) == MetricsFormat::kCsv) {
    TESSERA_RETURN_IF_ERROR(
        Append(file->fd_, MetricsCsvHeader() + "\n",
               absl::StrCat("--metrics=", path, " cannot be written")));
  }
  return file;
}

absl::Status MetricsFile::Add(const StepMetrics& step, int64_t ranks) {
  return Append(fd_, MetricsLine(step, ranks, MetricsFormatOf(path_)) + "\n",
                absl::StrCat("--metrics=", path_, " cannot be written"));
}

}  // namespace tessera::train
