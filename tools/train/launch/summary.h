// SummaryText: what a run came to, in a few lines for people.
//
//   std::cout << SummaryText(settings, result);
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_SUMMARY_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_SUMMARY_H_

#include <string>

#include "tools/train/loop/run_result.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// Steps, tokens and time, losses, shares of time (the mean over ranks, and the
// rank that computes least), memory, and where the checkpoint is.
std::string SummaryText(const Settings& settings, const RunResult& result);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_SUMMARY_H_
