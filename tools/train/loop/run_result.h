// RunResult: what came of a run, the same on every rank.
//
//   TESSERA_ASSIGN_OR_RETURN(const RunResult result, RunWorker(...));
//   result.steps.back().record.loss;
//   result.ranks[3].shares.communication;
#ifndef TESSERA_TOOLS_TRAIN_LOOP_RUN_RESULT_H_
#define TESSERA_TOOLS_TRAIN_LOOP_RUN_RESULT_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "offload/tier/purpose.h"
#include "tools/train/loop/step_record.h"
#include "tools/train/loop/time_shares.h"

namespace tessera::train {

struct StepResult {
  StepRecord record = {};
  double seconds = 0;  // Of rank 0, from one step's begin to its end.
  double tokens_per_second = 0;
  int64_t memory_bytes = 0;  // Resident, of the rank that has most.
  TimeShares shares = {};    // The mean over the ranks.
};

// Bytes by purpose, in the order of offload::kAllPurposes; each the most that
// there was at any moment.
using BytesByPurpose = std::array<int64_t, offload::kAllPurposes.size()>;

struct RankMemory {
  int64_t resident = 0;       // VmRSS behind the last step.
  int64_t peak_resident = 0;  // Since the run began.
  // Resident bytes before the run's own state was made.
  int64_t resident_before = 0;
  BytesByPurpose device = {};  // In the rank's own memory,
  BytesByPurpose host = {};    // in host tiers,
  BytesByPurpose file = {};    // and in files.
};

// Offloaded blocks that are brought near before they are used, over all steps.
// Blocks that are used in place are not in it.
struct OffloadTraffic {
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  int64_t stall_ns = 0;        // Spent waiting for them.
  int64_t least_stall_ns = 0;  // What no order of reads avoids.
};

struct RankResult {
  TimeShares shares = {};  // Of all steps but the first, if there are more.
  RankMemory memory = {};
  OffloadTraffic traffic = {};
};

// A change of strategy during the run, to stay within --memory_limit.
struct StrategyChange {
  int64_t steps = 0;          // Taken before it.
  int64_t used = 0;           // Bytes of the last of them, of all ranks.
  std::string strategy = {};  // "aggressive"
  std::string flags = {};     // What was changed: "--zero=3".
};

struct RunResult {
  std::vector<StepResult> steps = {};  // Those that this run took.
  int64_t first_step = 0;              // More than 0 where it was resumed.
  std::vector<RankResult> ranks = {};  // By rank of the world.
  std::vector<StrategyChange> strategy_changes = {};
  // Ranks are threads of one process: each rank's resident bytes are those of
  // all of them.
  bool memory_is_shared = false;
  std::string checkpoint = {};  // The last one; empty: none was written.
  // Over all steps but the first, if there are more.
  double tokens_per_second = 0;
  double seconds = 0;  // Of the steps.
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_RUN_RESULT_H_
