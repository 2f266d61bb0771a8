#include "tools/train/launch/finish.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/dtype/dtype.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/train/launch/hugging_face_run.h"
#include "tools/train/loop/snapshot_pace.h"
#include "tools/train/report/run_report.h"
#include "tools/train/report/run_result.h"
#include "tools/train/sample/generate.h"

namespace tessera::train {
namespace {

// The mean over the ranks, of which there is at least one.
TimeShares MeanShares(std::span<const RankResult> ranks) {
  TimeShares mean;
  const double part = 1.0 / static_cast<double>(ranks.size());
  for (const RankResult& rank : ranks) mean.Add(rank.shares, part);
  return mean;
}

// "compute 41 %, communication 30 %, ..."
std::string ShowShares(const TimeShares& shares) {
  return absl::StrFormat(
      "compute %.0f %%, communication %.0f %%, bubble %.0f %%, offload %.0f %%",
      100 * shares.compute, 100 * shares.communication, 100 * shares.bubble,
      100 * shares.offload);
}

// The number of tokens of the run's steps.
int64_t TokensOf(const Settings& settings, const RunResult& result) {
  const BatchSchedule batches = BatchScheduleOf(settings);
  const auto steps = static_cast<int64_t>(result.steps.size());
  return settings.length * (batches.SamplesBefore(result.first_step + steps) -
                            batches.SamplesBefore(result.first_step));
}

std::string ShowSteps(const Settings& settings, const RunResult& result) {
  const int64_t tokens = settings.batch * settings.length;
  const int64_t first =
      settings.length * BatchScheduleOf(settings).At(result.first_step);
  std::string text = absl::StrFormat(
      "%d steps of %s%d tokens in %.1f s, %.0f tokens/s", result.steps.size(),
      first < tokens ? absl::StrCat(first, " to ") : "", tokens, result.seconds,
      result.tokens_per_second);
  if (result.first_step > 0) {
    absl::StrAppend(&text, ", after step ", result.first_step);
  }
  return text;
}

std::string ShowLosses(const RunResult& result) {
  const StepRecord& first = result.steps.front().record;
  const StepRecord& last = result.steps.back().record;
  return absl::StrFormat("%.4f at step %d, %.4f at step %d", first.loss,
                         first.step + 1, last.loss, last.step + 1);
}

// Null if there was no validation.
const StepRecord* LastValidation(const RunResult& result) {
  for (size_t i = result.steps.size(); i-- > 0;) {
    if (result.steps[i].record.eval_loss) return &result.steps[i].record;
  }
  return nullptr;
}

std::optional<double> TestLoss(const RunResult& result) {
  return result.steps.empty() ? std::nullopt
                              : result.steps.back().record.test_loss;
}

std::string ShowTime(const RunResult& result) {
  const auto least =
      std::min_element(result.ranks.begin(), result.ranks.end(),
                       [](const RankResult& a, const RankResult& b) {
                         return a.shares.compute < b.shares.compute;
                       });
  return absl::StrFormat("%s; rank %d computes least, %.0f %%",
                         ShowShares(MeanShares(result.ranks)),
                         least - result.ranks.begin(),
                         100 * least->shares.compute);
}

std::string ShowMemory(const RunResult& result) {
  const auto most =
      std::max_element(result.ranks.begin(), result.ranks.end(),
                       [](const RankResult& a, const RankResult& b) {
                         return a.memory.peak_resident < b.memory.peak_resident;
                       });
  const std::string bytes = absl::StrFormat(
      "%.1f MiB resident",
      static_cast<double>(most->memory.peak_resident) / (1 << 20));
  if (result.memory_is_shared) return absl::StrCat(bytes, " for all ranks");
  return absl::StrCat(bytes, " at most, of rank ", most - result.ranks.begin());
}

using Json = nlohmann::ordered_json;

int64_t MostResident(const RunResult& result) {
  int64_t most = 0;
  for (const RankResult& rank : result.ranks) {
    most = std::max(most, rank.memory.peak_resident);
  }
  return most;
}

void AddShares(const TimeShares& shares, Json& json) {
  json["compute"] = shares.compute;
  json["communication"] = shares.communication;
  json["bubble"] = shares.bubble;
  json["offload"] = shares.offload;
  json["state_traffic"] = shares.state_traffic;
  json["state_hidden"] = shares.state_hidden;
}

// Returns "" if no sample is requested.
absl::StatusOr<std::string> DrawSample(const FinishedRun& run,
                                       const RunResult& result) {
  const Settings& settings = run.settings;
  if (settings.sample_tokens == 0 || result.checkpoint.empty()) return "";
  tensor_parallel::CpuOps ops({.threads = static_cast<int>(settings.threads)});
  return GenerateText(result.checkpoint, *run.tokenizer, ops,
                      {.prompt = settings.sample_prompt,
                       .tokens = settings.sample_tokens,
                       .temperature = settings.sample_temperature,
                       .seed = static_cast<uint64_t>(settings.seed)});
}

absl::StatusOr<LossDifference> Verify(const FinishedRun& run,
                                      const RunResult& result,
                                      std::ostream& err) {
  err << "train: repeats the steps on one rank to compare the losses"
      << std::endl;
  TESSERA_ASSIGN_OR_RETURN(const std::string text,
                           run.train(OneRankSettings(run.settings)),
                           Annotate(_, "--verify"));
  TESSERA_ASSIGN_OR_RETURN(const RunResult alone, ParseRunResult(text));
  return CompareLosses(result, alone);
}

// Prints each part as soon as it is ready, because some take long.
absl::Status FinishAsText(const FinishedRun& run, RunOutcome& outcome,
                          std::ostream& out, std::ostream& err) {
  out << SummaryText(run.settings, outcome.result);
  for (const std::string& model : outcome.models) {
    out << absl::StrFormat("%-11s", "model") << model << "\n";
  }
  out.flush();
  TESSERA_ASSIGN_OR_RETURN(outcome.sample, DrawSample(run, outcome.result),
                           Annotate(_, "the sample"));
  if (!outcome.sample.empty()) out << "\n" << outcome.sample << "\n";
  if (outcome.report) {
    out << "\n";
    PrintRunReport(*outcome.report, out);
  }
  out.flush();
  if (!run.settings.verify) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(outcome.verified, Verify(run, outcome.result, err));
  TESSERA_RETURN_IF_ERROR(CheckDifference(*outcome.verified, run.settings));
  out << "\nverified: " << DescribeDifference(*outcome.verified) << "\n";
  return absl::OkStatus();
}

absl::Status FinishAsJson(const FinishedRun& run, RunOutcome& outcome,
                          std::ostream& out, std::ostream& err) {
  TESSERA_ASSIGN_OR_RETURN(outcome.sample, DrawSample(run, outcome.result),
                           Annotate(_, "the sample"));
  if (run.settings.verify) {
    TESSERA_ASSIGN_OR_RETURN(outcome.verified,
                             Verify(run, outcome.result, err));
  }
  out << OutcomeAsJson(outcome) << std::flush;
  return outcome.verified ? CheckDifference(*outcome.verified, run.settings)
                          : absl::OkStatus();
}

}  // namespace

Settings OneRankSettings(const Settings& settings) {
  Settings alone = settings;
  alone.parallel.mesh = {};
  alone.engine = "in_process";
  alone.encrypt_data = false;
  alone.parallel.strategy = topology::CommunicationStrategy::kAllReduce;
  alone.parallel.schedule = "1f1b";
  alone.parallel.chunks = 1;
  alone.parallel.split = {};
  alone.sequence_parallel = false;
  alone.overlap_chunks = 0;
  alone.context_attention = "ring";
  alone.recompute = "none";
  alone.zero = settings.base_weights == "full" ? 0 : 3;
  const Settings usual;  // Options of the other stages.
  alone.reduce = usual.reduce;
  alone.gather_ahead = usual.gather_ahead;
  alone.max_gathered_bytes = usual.max_gathered_bytes;
  alone.persistence_threshold = usual.persistence_threshold;
  alone.hpz_partition_size = usual.hpz_partition_size;
  alone.offload = "none";
  alone.offload_dir = "";
  alone.layout = "chunks";
  alone.host_budget = {};
  alone.pin_memory = false;
  alone.offload_strategy = "conservative";
  alone.compression = "none";
  alone.parallel.memory_limit = {};
  alone.parallel.device_budget = {};
  alone.parallel.memory_strategy = {};
  alone.run_dir = "";
  alone.save_hf = "";
  alone.checkpoint_every = 0;
  alone.eval_every = 0;
  alone.metrics = "";
  alone.tensorboard = "";
  alone.html = "";
  alone.prometheus_file = "";
  alone.trace = "";
  alone.time_limit = "";
  alone.max_restarts = 0;
  alone.min_dp = 0;
  alone.max_dp = 0;
  alone.quiet = true;
  return alone;
}

LossDifference CompareLosses(const RunResult& run, const RunResult& alone) {
  std::map<int64_t, double> expected;
  for (const StepMetrics& step : alone.steps) {
    expected[step.record.step] = step.record.loss;
  }
  LossDifference difference;
  for (const StepMetrics& step : run.steps) {
    const auto found = expected.find(step.record.step);
    if (found == expected.end()) continue;
    const double relative =
        std::abs(step.record.loss - found->second) / std::abs(found->second);
    const bool is_larger = !(relative <= difference.largest);
    if (difference.steps++ == 0 ||
        (is_larger && !std::isnan(difference.largest))) {
      difference.largest = relative;
      difference.at_step = step.record.step;
    }
  }
  return difference;
}

double AllowedDifference(const Settings& settings) {
  if (settings.parallel.fp8) return 5e-2;
  return settings.parallel.dtype == DType::kF32 && settings.moments == "f32"
             ? 1e-5
             : 2e-2;
}

absl::Status CheckDifference(const LossDifference& difference,
                             const Settings& settings) {
  if (difference.steps == 0) {
    return absl::DataLossError("--verify: the runs have no step in common");
  }
  const double allowed = AllowedDifference(settings);
  if (difference.largest <= allowed) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("--verify: ", DescribeDifference(difference),
                   absl::StrFormat(", and %g is allowed for ", allowed),
                   DTypeFlag(settings.parallel)));
}

std::string DescribeDifference(const LossDifference& difference) {
  return absl::StrFormat(
      "the losses of %d steps on one rank differ by at most %.2g of their "
      "value (step %d)",
      difference.steps, difference.largest, difference.at_step + 1);
}

std::string SummaryText(const Settings& settings, const RunResult& result) {
  std::string text = absl::StrCat("\n", ShowSteps(settings, result), "\n");
  const auto line = [&](std::string_view name, const std::string& value) {
    absl::StrAppend(&text, absl::StrFormat("%-11s", name), value, "\n");
  };
  if (!result.steps.empty()) line("loss", ShowLosses(result));
  if (const StepRecord* last = LastValidation(result)) {
    line("validation",
         absl::StrFormat("loss %.4f, perplexity %.4g after step %d",
                         *last->eval_loss, std::exp(*last->eval_loss),
                         last->step + 1));
  }
  if (const std::optional<double> loss = TestLoss(result)) {
    line("test",
         absl::StrFormat("loss %.4f, perplexity %.4g", *loss, std::exp(*loss)));
  }
  if (!result.ranks.empty()) {
    line("time", ShowTime(result));
    line("memory", ShowMemory(result));
  }
  for (const StrategyChange& change : result.strategy_changes) {
    line("strategy", absl::StrCat(change.strategy, " after ", change.steps,
                                  " steps: ", change.flags));
  }
  for (const Rollback& rollback : result.rollbacks) {
    line("rollback",
         absl::StrFormat("from step %d, of loss %.4f, to step %d; %d samples "
                         "left out",
                         rollback.step + 1, rollback.loss, rollback.to_step + 1,
                         rollback.skipped_samples));
  }
  for (const SnapshotChoice& choice : result.snapshot_choices) {
    line("copies", DescribeChoice(choice));
  }
  if (!result.checkpoint.empty()) line("checkpoint", result.checkpoint);
  return text;
}

std::string OutcomeAsJson(const RunOutcome& outcome) {
  const Settings& settings = outcome.settings;
  const RunResult& result = outcome.result;
  Json json;
  json["run_dir"] = outcome.run_dir;
  json["checkpoint"] = result.checkpoint;
  json["model"] = settings.model;
  json["mesh"] = settings.parallel.mesh.ToFlag();
  json["first_step"] = result.first_step;
  json["steps"] = result.steps.size();
  json["tokens"] = TokensOf(settings, result);
  json["seconds"] = result.seconds;
  json["tokens_per_second"] = result.tokens_per_second;
  if (!result.steps.empty()) {
    json["first_loss"] = result.steps.front().record.loss;
    json["last_loss"] = result.steps.back().record.loss;
  }
  if (const StepRecord* last = LastValidation(result)) {
    json["eval_loss"] = *last->eval_loss;
    json["eval_perplexity"] = std::exp(*last->eval_loss);
  }
  if (const std::optional<double> loss = TestLoss(result)) {
    json["test_loss"] = *loss;
    json["test_perplexity"] = std::exp(*loss);
  }
  if (!result.ranks.empty()) AddShares(MeanShares(result.ranks), json);
  json["memory_bytes"] = MostResident(result);
  const Json stored = Json::parse(FormatRunResult(result));
  for (const char* key :
       {"strategy_changes", "rollbacks", "snapshot_choices"}) {
    json[key] = stored[key];
  }
  json["sample"] = outcome.sample;
  json["models"] = outcome.models;
  if (outcome.report) {
    json["report"] = Json::parse(RunReportAsJson(*outcome.report));
  }
  if (outcome.verified) {
    json["verified"] = {{"steps", outcome.verified->steps},
                        {"largest_difference", outcome.verified->largest},
                        {"at_step", outcome.verified->at_step}};
  }
  // The sample may be invalid UTF-8.
  return DumpJson(json, 2) + "\n";
}

absl::Status FinishRun(const FinishedRun& run, const std::string& text,
                       std::ostream& out, std::ostream& err) {
  RunOutcome outcome = {.settings = run.settings,
                        .run_dir = run.directory.path()};
  TESSERA_ASSIGN_OR_RETURN(outcome.result, ParseRunResult(text));
  if (std::string& checkpoint = outcome.result.checkpoint;
      !checkpoint.empty()) {
    // JSON lacks the bytes of the directory's name that are not UTF-8.
    checkpoint =
        absl::StrCat(run.directory.checkpoints(), "/",
                     std::filesystem::path(checkpoint).filename().string());
  }
  TESSERA_RETURN_IF_ERROR(WriteFile(run.directory.result(), text));
  if (run.prediction.has_value()) {
    RunPrediction prediction = *run.prediction;
    if (const std::string& order = outcome.result.order; !order.empty()) {
      TESSERA_ASSIGN_OR_RETURN(prediction.mesh.order,
                               prediction.mesh.ParseOrder(order));
    }
    outcome.report = MakeRunReport(outcome.result, run.settings, prediction);
  }
  absl::StatusOr<std::vector<std::string>> models = SaveModel(
      run.settings, *run.tokenizer, run.directory, outcome.result.checkpoint);
  if (models.ok()) outcome.models = *models;
  const absl::Status finished = run.settings.format == "json"
                                    ? FinishAsJson(run, outcome, out, err)
                                    : FinishAsText(run, outcome, out, err);
  TESSERA_RETURN_IF_ERROR(models.status());
  return finished;
}

}  // namespace tessera::train
