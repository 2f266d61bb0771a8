#include "tools/train/report/run_result.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera::train {

namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// Writer and Reader have the same interface, so that one description of every
// value serves both directions.
class Writer {
 public:
  template <typename T>
  void Value(const char* key, const T& value) {
    json_[key] = value;
  }
  void Value(const char* key, const std::optional<double>& value) {
    if (value) json_[key] = *value;
  }
  template <typename T, typename Describe>
  void Object(const char* key, T& value, Describe describe) {
    Writer inner;
    describe(inner, value);
    json_[key] = std::move(inner.json_);
  }
  template <typename T, typename Describe>
  void List(const char* key, std::vector<T>& values, Describe describe) {
    OrderedJson list = OrderedJson::array();
    for (T& value : values) {
      Writer inner;
      describe(inner, value);
      list.push_back(std::move(inner.json_));
    }
    json_[key] = std::move(list);
  }
  std::string Text() const { return DumpJson(json_); }

 private:
  OrderedJson json_ = OrderedJson::object();
};

class Reader {
 public:
  Reader(const Json& json, std::string path, JsonProblems& problems)
      : Reader(JsonReader(json, std::move(path), problems), problems) {}

  // JSON has no NaN, so it is written as null.
  void Value(const char* key, double& value) {
    const Json* found = fields_.Find(key);
    const bool is_nan = found != nullptr && found->is_null();
    value =
        is_nan ? std::numeric_limits<double>::quiet_NaN() : fields_.Number(key);
  }
  void Value(const char* key, std::optional<double>& value) {
    if (fields_.Find(key) != nullptr) Value(key, value.emplace());
  }
  void Value(const char* key, int64_t& value) {
    using Limits = std::numeric_limits<int64_t>;
    value = fields_.Integer(key, Limits::min(), Limits::max());
  }
  void Value(const char* key, bool& value) { value = fields_.Boolean(key); }
  void Value(const char* key, std::string& value) { value = fields_.Text(key); }

  template <typename T, typename Describe>
  void Object(const char* key, T& value, Describe describe) {
    Reader inner(fields_.Child(key), problems_);
    describe(inner, value);
  }
  template <typename T, typename Describe>
  void List(const char* key, std::vector<T>& values, Describe describe) {
    for (const Json& item : fields_.Array(key)) {
      Reader inner(item,
                   absl::StrCat(fields_.PathOf(key), "[", values.size(), "]"),
                   problems_);
      if (!problems_.empty()) return;
      describe(inner, values.emplace_back());
    }
  }

 private:
  Reader(JsonReader fields, JsonProblems& problems)
      : fields_(std::move(fields)), problems_(problems) {}

  JsonReader fields_;
  JsonProblems& problems_;
};

constexpr auto kShares = [](auto& io, TimeShares& shares) {
  io.Value("compute", shares.compute);
  io.Value("communication", shares.communication);
  io.Value("bubble", shares.bubble);
  io.Value("offload", shares.offload);
  io.Value("products", shares.products);
  io.Value("optimizer", shares.optimizer);
  io.Value("data", shares.data);
  io.Value("state_traffic", shares.state_traffic);
  io.Value("state_hidden", shares.state_hidden);
};

constexpr auto kStep = [](auto& io, StepMetrics& step) {
  io.Value("step", step.record.step);
  io.Value("loss", step.record.loss);
  io.Value("grad_norm", step.record.gradient_norm);
  io.Value("lr", step.record.learning_rate);
  io.Value("loss_scale", step.record.loss_scale);
  io.Value("skipped", step.record.skipped);
  io.Value("eval_loss", step.record.eval_loss);
  io.Value("test_loss", step.record.test_loss);
  io.Value("expert_imbalance", step.record.expert_imbalance);
  io.Value("max_attention_score", step.record.max_attention_score);
  io.Value("reward_chosen", step.record.reward_chosen);
  io.Value("reward_rejected", step.record.reward_rejected);
  io.Value("reward_accuracy", step.record.reward_accuracy);
  io.Value("tokens", step.record.tokens);
  io.Value("rollbacks", step.record.rollbacks);
  io.Value("seconds", step.seconds);
  io.Value("tokens_per_second", step.tokens_per_second);
  io.Value("memory_bytes", step.memory_bytes);
  io.Object("shares", step.shares, kShares);
};

constexpr auto kPurposes = [](auto& io, BytesByPurpose& bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    io.Value(offload::PurposeName(offload::kAllPurposes[i]).data(), bytes[i]);
  }
};

constexpr auto kMemory = [](auto& io, RankMemory& memory) {
  io.Value("resident", memory.resident);
  io.Value("peak_resident", memory.peak_resident);
  io.Value("resident_before", memory.resident_before);
  io.Object("device", memory.device, kPurposes);
  io.Object("host", memory.host, kPurposes);
  io.Object("file", memory.file, kPurposes);
};

constexpr auto kTraffic = [](auto& io, OffloadTraffic& traffic) {
  io.Value("bytes_read", traffic.bytes_read);
  io.Value("bytes_written", traffic.bytes_written);
  io.Value("stall_ns", traffic.stall_ns);
  io.Value("least_stall_ns", traffic.least_stall_ns);
};

constexpr auto kAxisMessages = [](auto& io, AxisMessages& one) {
  io.Value("axis", one.axis);
  io.Value("ranks", one.ranks);
  io.Value("operation", one.operation);
  io.Value("count", one.totals.count);
  io.Value("failed", one.totals.failed);
  io.Value("bytes", one.totals.bytes);
  io.Value("busy_bytes", one.totals.busy_bytes);
  io.Value("largest_bytes", one.totals.largest_bytes);
  io.Value("ns", one.totals.ns);
  io.Value("shortest_ns", one.totals.shortest_ns);
  io.Value("longest_ns", one.totals.longest_ns);
};

constexpr auto kMessages = [](auto& io, MeasuredMessages& measured) {
  io.Value("steps", measured.steps);
  io.Value("is_timed", measured.is_timed);
  io.List("messages", measured.messages, kAxisMessages);
};

constexpr auto kRank = [](auto& io, RankResult& rank) {
  io.Object("shares", rank.shares, kShares);
  io.Object("memory", rank.memory, kMemory);
  io.Object("traffic", rank.traffic, kTraffic);
  io.Object("messages", rank.messages, kMessages);
};

constexpr auto kChange = [](auto& io, StrategyChange& change) {
  io.Value("steps", change.steps);
  io.Value("used", change.used);
  io.Value("strategy", change.strategy);
  io.Value("flags", change.flags);
};

constexpr auto kRollback = [](auto& io, Rollback& rollback) {
  io.Value("step", rollback.step);
  io.Value("loss", rollback.loss);
  io.Value("usual", rollback.usual);
  io.Value("to_step", rollback.to_step);
  io.Value("skipped_samples", rollback.skipped_samples);
};

constexpr auto kSnapshotChoice = [](auto& io, SnapshotChoice& choice) {
  io.Value("every", choice.every);
  io.Value("step_seconds", choice.step_seconds);
  io.Value("copy_seconds", choice.copy_seconds);
  io.Value("failure_seconds", choice.failure_seconds);
};

constexpr auto kRun = [](auto& io, RunResult& run) {
  io.Value("seconds", run.seconds);
  io.Value("tokens_per_second", run.tokens_per_second);
  io.Value("first_step", run.first_step);
  io.Value("checkpoint", run.checkpoint);
  io.Value("order", run.order);
  io.Value("memory_is_shared", run.memory_is_shared);
  io.List("steps", run.steps, kStep);
  io.List("ranks", run.ranks, kRank);
  io.List("strategy_changes", run.strategy_changes, kChange);
  io.List("rollbacks", run.rollbacks, kRollback);
  io.List("snapshot_choices", run.snapshot_choices, kSnapshotChoice);
};

// Any value with a description, as JSON and back.
template <typename T, typename Describe>
std::string Format(T value, Describe describe) {
  Writer writer;
  describe(writer, value);
  return writer.Text();
}

template <typename T, typename Describe>
absl::StatusOr<T> Parse(std::string_view json, std::string_view what,
                        Describe describe) {
  TESSERA_ASSIGN_OR_RETURN(const Json document,
                           ParseJson(json, {.max_bytes = kMaxRunResultBytes}));
  T value;
  JsonProblems problems;
  Reader reader(document, "", problems);
  describe(reader, value);
  TESSERA_RETURN_IF_ERROR(problems.ToStatus(what));
  return value;
}

}  // namespace

std::string FormatMessages(const MeasuredMessages& messages) {
  return Format(messages, kMessages);
}

absl::StatusOr<MeasuredMessages> ParseMessages(std::string_view json) {
  return Parse<MeasuredMessages>(json, "a rank's messages", kMessages);
}

std::string FormatRunResult(const RunResult& result) {
  return Format(result, kRun);
}

absl::StatusOr<RunResult> ParseRunResult(std::string_view json) {
  return Parse<RunResult>(json, "the run's result", kRun);
}

}  // namespace tessera::train
