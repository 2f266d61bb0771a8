// The result of a run: its steps, and each rank's time and memory. It is the
// same on every rank.
//
//   TESSERA_ASSIGN_OR_RETURN(const RunResult result, RunWorker(...));
//   result.steps.back().record.loss;
//   result.ranks[3].shares.communication;
//
// Rank 0 sends it as JSON to the process that the user started, which stores it
// as result.json in the run directory:
//
//   {"seconds": 41.2, "tokens_per_second": 2970, "first_step": 0,
//    "checkpoint": "/tmp/train-x/checkpoints/step-00000060",
//    "memory_is_shared": false, "steps": [{"step": 0, ...}, ...],
//    "ranks": [{"shares": {...}, "memory": {...}, "messages": {...}}, ...]}
#ifndef TESSERA_TOOLS_TRAIN_REPORT_RUN_RESULT_H_
#define TESSERA_TOOLS_TRAIN_REPORT_RUN_RESULT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/tier/accounting.h"
#include "tools/train/predict/message_table.h"
#include "tools/train/report/straggler.h"
#include "tools/train/step/run_progress.h"

namespace tessera::train {

// Shares of a rank's time in one or several steps. The first four add up to 1.
// README.md describes the measurement.
struct TimeShares {
  double compute = 0;        // On the rank's own processor.
  double communication = 0;  // In collectives and messages.
  double bubble = 0;         // Waiting for a pipeline peer's computations.
  double offload = 0;        // Waiting for memory tiers.

  // Parts of compute: matrix products and attention; the optimizer's step;
  // reading the data.
  double products = 0;
  double optimizer = 0;
  double data = 0;

  // The share of time in which weights are gathered or gradients are reduced,
  // whether or not anything else runs; and the part of it in which the rank
  // computes.
  double state_traffic = 0;
  double state_hidden = 0;

  void Add(const TimeShares& other, double factor) {
    compute += factor * other.compute;
    communication += factor * other.communication;
    bubble += factor * other.bubble;
    offload += factor * other.offload;
    products += factor * other.products;
    optimizer += factor * other.optimizer;
    data += factor * other.data;
    state_traffic += factor * other.state_traffic;
    state_hidden += factor * other.state_hidden;
  }

  double Sum() const { return compute + communication + bubble + offload; }
};

// A step with its time and memory.
struct StepMetrics {
  StepRecord record = {};
  double seconds = 0;  // On rank 0, since the end of the previous step.
  double tokens_per_second = 0;
  int64_t memory_bytes = 0;  // The largest resident size of a rank.
  TimeShares shares = {};    // The mean over the ranks.
  // The slowest rank of each section in the last steps; not in results.
  std::vector<Straggler> slowest = {};
};

// Peak bytes by purpose, in the order of offload::kAllPurposes.
using BytesByPurpose = std::array<int64_t, offload::kAllPurposes.size()>;

struct RankMemory {
  int64_t resident = 0;       // VmRSS after the last step.
  int64_t peak_resident = 0;  // Since the run began.
  // Resident bytes before the run allocated its own state.
  int64_t resident_before = 0;
  BytesByPurpose device = {};  // In the rank's own memory.
  BytesByPurpose host = {};    // In host tiers.
  BytesByPurpose file = {};    // In files.
};

// Offloaded blocks that are copied to near memory before use, over all steps.
// Blocks that are used in place are not counted.
struct OffloadTraffic {
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  int64_t stall_ns = 0;        // Time spent waiting for them.
  int64_t least_stall_ns = 0;  // Unavoidable with any order of reads.
};

struct RankResult {
  TimeShares shares = {};  // Without the first step, if there are more.
  RankMemory memory = {};
  OffloadTraffic traffic = {};
  MeasuredMessages messages = {};  // Without the first step, if there are more.
};

// Formats messages as JSON, and parses it: InvalidArgument for other JSON.
std::string FormatMessages(const MeasuredMessages& messages);
absl::StatusOr<MeasuredMessages> ParseMessages(std::string_view json);

// A change of the memory strategy during the run, to stay within
// --memory_limit.
struct StrategyChange {
  int64_t steps = 0;          // Taken before the change.
  int64_t used = 0;           // Bytes of all ranks in the last step before it.
  std::string strategy = {};  // "aggressive"
  std::string flags = {};     // The changed flags: "--zero=3".
};

// A return to a checkpoint because of a spike of the loss.
struct Rollback {
  int64_t step = 0;  // The step of the spike, from 0.
  double loss = 0;   // Its loss; may be infinite or NaN.
  // The median of the losses before it; NaN if there are too few.
  double usual = 0;
  int64_t to_step = 0;          // The next step after the rollback.
  int64_t skipped_samples = 0;  // Samples that this rollback skips.
};

// A choice of --snapshot_every=auto (loop/snapshot_pace.h).
struct SnapshotChoice {
  int64_t every = 0;           // Steps.
  double step_seconds = 0;     // Without a copy.
  double copy_seconds = 0;     // By which a copy makes a step longer.
  double failure_seconds = 0;  // Mean time between failures of the run.
};

struct RunResult {
  // The steps of this run, without those that a rollback discarded.
  std::vector<StepMetrics> steps = {};
  int64_t first_step = 0;              // Above 0 if the run was resumed.
  std::vector<RankResult> ranks = {};  // By rank of the world.
  std::vector<StrategyChange> strategy_changes = {};
  std::vector<Rollback> rollbacks = {};
  std::vector<SnapshotChoice> snapshot_choices = {};  // At most one.
  // Ranks are threads of one process; each reports the resident bytes of the
  // whole process.
  bool memory_is_shared = false;
  std::string checkpoint = {};  // The last one; empty if none was written.
  std::string order = {};       // The selected order of the axes (--order).
  // Without the first step, if there are more.
  double tokens_per_second = 0;
  double seconds = 0;  // Over all steps.
};

inline constexpr size_t kMaxRunResultBytes = size_t{1} << 30;

// Formats the result as JSON. Exact, except that infinite and NaN numbers
// become null, which ParseRunResult reads as NaN.
std::string FormatRunResult(const RunResult& result);

// Parses the output of FormatRunResult. InvalidArgument, with the position, for
// other JSON.
absl::StatusOr<RunResult> ParseRunResult(std::string_view json);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_RUN_RESULT_H_
