// FinishRun: what a run ends with, once its last rank is done.
//
//   TESSERA_RETURN_IF_ERROR(FinishRun(
//       {settings, tokenizer, prediction, directory,
//        [&](const Settings& alone) { return Train(alone); }},
//       result, std::cout, std::cerr));
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_FINISH_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_FINISH_H_

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/text/tokenizer.h"
#include "tools/train/launch/run_directory.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

struct FinishedRun {
  Settings settings;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  // For --report: from before the run.
  std::optional<RunPrediction> prediction;
  RunDirectory directory;
  // For --verify: another run, which returns FormatRunResult.
  std::function<absl::StatusOr<std::string>(const Settings&)> train;
};

// Writes `result`, of FormatRunResult, into the directory; prints the summary
// and a sample, and with --report and --verify what those say, as text or, with
// --format=json, in one object. DataLoss where
// the losses are not those of one rank.
absl::Status FinishRun(const FinishedRun& run, const std::string& result,
                       std::ostream& out, std::ostream& err);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_FINISH_H_
