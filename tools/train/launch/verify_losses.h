// VerifyLosses: whether a run learnt what one rank learns.
//
//   TESSERA_ASSIGN_OR_RETURN(RunResult alone, Run(OneRankSettings(settings)));
//   const LossDifference difference = CompareLosses(result, alone);
//   TESSERA_RETURN_IF_ERROR(CheckDifference(difference, settings));
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_VERIFY_LOSSES_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_VERIFY_LOSSES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tools/train/loop/run_result.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// The same steps on one rank: a thread, nothing partitioned, offloaded,
// recomputed or in stages. It leaves nothing behind and prints no table.
Settings OneRankSettings(const Settings& settings);

struct LossDifference {
  int64_t steps = 0;    // That both runs took.
  double largest = 0;   // |a - b| / |b|; not a number where one loss is none.
  int64_t at_step = 0;  // Where that is.
};

// Of the steps that are in both.
LossDifference CompareLosses(const RunResult& run, const RunResult& alone);

// 1e-5 for fp32 with moments of f32, 2e-2 where either is rounded.
double AllowedDifference(const Settings& settings);

// DataLoss where the difference is larger than allowed, or no step was
// compared.
absl::Status CheckDifference(const LossDifference& difference,
                             const Settings& settings);

// "the losses of 60 steps on one rank differ by at most 3.1e-07 (step 12)"
std::string DescribeDifference(const LossDifference& difference);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_VERIFY_LOSSES_H_
