// RunOutcome: what a run came to, for programs.
//
//   std::cout << OutcomeAsJson({.settings = settings, .result = result});
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_RUN_OUTCOME_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_RUN_OUTCOME_H_

#include <optional>
#include <string>

#include "tools/train/launch/verify_losses.h"
#include "tools/train/loop/run_result.h"
#include "tools/train/report/run_report.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

struct RunOutcome {
  Settings settings = {};
  RunResult result = {};
  std::string run_dir = {};
  std::string sample = {};                                // Empty: none.
  std::optional<RunReport> report = std::nullopt;         // --report
  std::optional<LossDifference> verified = std::nullopt;  // --verify
};

// An object with the keys run_dir, checkpoint, model, mesh, first_step, steps,
// tokens, seconds, tokens_per_second, first_loss, last_loss, compute,
// communication, bubble, offload (shares, the mean over ranks), memory_bytes
// (resident, of the rank with most), sample, and where they were asked for
// report (RunReportAsJson) and verified. Losses that are not finite are null.
// Ends with a line feed.
std::string OutcomeAsJson(const RunOutcome& outcome);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_RUN_OUTCOME_H_
