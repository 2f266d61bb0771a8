// MeanShares: shares of time, the mean over ranks.
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_MEAN_SHARES_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_MEAN_SHARES_H_

#include <span>

#include "tools/train/loop/run_result.h"

namespace tessera::train {

// There is a rank.
inline TimeShares MeanShares(std::span<const RankResult> ranks) {
  TimeShares mean;
  const double part = 1.0 / static_cast<double>(ranks.size());
  for (const RankResult& rank : ranks) mean.Add(rank.shares, part);
  return mean;
}

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_MEAN_SHARES_H_
