// Finishes a run after its last rank has ended: writes result.json, the
// summary, a sample, and the outputs of --report and --verify.
//
//   TESSERA_RETURN_IF_ERROR(FinishRun(
//       {settings, tokenizer, prediction, directory,
//        [&](const Settings& alone) { return Train(alone); }},
//       result, std::cout, std::cerr));
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_FINISH_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_FINISH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/text/tokenizer.h"
#include "tools/train/launch/run_directory.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/report/run_report.h"
#include "tools/train/report/run_result.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

struct FinishedRun {
  Settings settings;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  // The prediction made before the run, for --report.
  std::optional<RunPrediction> prediction;
  RunDirectory directory;
  // For --verify: trains another run and returns its FormatRunResult.
  std::function<absl::StatusOr<std::string>(const Settings&)> train;
};

// `result` is the output of FormatRunResult. Writes it into the directory, and
// the model to --save_hf, and prints the outcome to `out` as text or, with
// --format=json, as one object. DataLoss if --verify finds losses that differ
// from those of one rank. An error of --save_hf is returned after the outcome
// is printed.
absl::Status FinishRun(const FinishedRun& run, const std::string& result,
                       std::ostream& out, std::ostream& err);

// A human-readable summary in a few lines: steps, tokens and time, losses,
// shares of time (the mean over ranks, and the rank that computes least),
// memory, and the path of the checkpoint.
std::string SummaryText(const Settings& settings, const RunResult& result);

// The settings for --verify: the same steps on one rank, which is a thread.
// Nothing is partitioned, offloaded, recomputed or pipelined. The run leaves no
// files and prints no table.
//
//   TESSERA_ASSIGN_OR_RETURN(RunResult alone, Run(OneRankSettings(settings)));
//   const LossDifference difference = CompareLosses(result, alone);
//   TESSERA_RETURN_IF_ERROR(CheckDifference(difference, settings));
Settings OneRankSettings(const Settings& settings);

struct LossDifference {
  int64_t steps = 0;    // Steps in both runs.
  double largest = 0;   // |a - b| / |b|; NaN if a loss is NaN.
  int64_t at_step = 0;  // The step with the largest difference.
};

// Compares the losses of the steps that are in both runs.
LossDifference CompareLosses(const RunResult& run, const RunResult& alone);

// The relative difference that is allowed: 1e-5 for fp32 with moments of f32;
// 2e-2 if either is rounded.
double AllowedDifference(const Settings& settings);

// DataLoss if the difference is larger than allowed, or no step was compared.
absl::Status CheckDifference(const LossDifference& difference,
                             const Settings& settings);

// "the losses of 60 steps on one rank differ by at most 3.1e-07 (step 12)"
std::string DescribeDifference(const LossDifference& difference);

// The outcome of a run for programs.
struct RunOutcome {
  Settings settings = {};
  RunResult result = {};
  std::string run_dir = {};
  std::string sample = {};               // Empty: no sample.
  std::vector<std::string> models = {};  // The directories of --save_hf.
  std::optional<RunReport> report = std::nullopt;         // --report
  std::optional<LossDifference> verified = std::nullopt;  // --verify
};

// An object with the keys run_dir, checkpoint, model, mesh, first_step, steps,
// tokens, seconds, tokens_per_second, first_loss, last_loss, compute,
// communication, bubble, offload (shares of time, the mean over ranks),
// memory_bytes (the largest resident size of a rank), strategy_changes, sample,
// models, and if requested report (RunReportAsJson) and verified. Losses that
// are not finite are null. Ends with a line feed.
std::string OutcomeAsJson(const RunOutcome& outcome);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_FINISH_H_
