// MemoryStrategy: keeps a run within --memory_limit. It measures the memory of
// all ranks after each step, and chooses settings that need less if it exceeds
// the limit.
//
//   MemoryStrategy memory(run);
//   memory.Restart();
//   ... rank.Step() ...
//   TESSERA_ASSIGN_OR_RETURN(const int64_t excessive,
//                            memory.AfterStep(setup.tiers()));
//   if (excessive > 0) rung = memory.NextRung(excessive);
#ifndef TESSERA_TOOLS_TRAIN_LOOP_MEMORY_STRATEGY_H_
#define TESSERA_TOOLS_TRAIN_LOOP_MEMORY_STRATEGY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/train/loop/checkpoint_history.h"
#include "tools/train/loop/memory_watch.h"
#include "tools/train/loop/offload_tiers.h"
#include "tools/train/loop/rank_setup.h"
#include "tools/train/loop/run_context.h"
#include "tools/train/report/run_result.h"
#include "tools/train/settings/memory_ladder.h"
#include "topology/config/strategies.h"

namespace tessera::train {

// A checkpoint from which a run continues with other settings.
struct StrategyCheckpoint {
  std::string path = {};
  // Removes the checkpoint with its directory if the run keeps no checkpoints.
  std::shared_ptr<void> scratch = nullptr;
};

// Without --memory_limit nothing is measured.
class MemoryStrategy {
 public:
  // `run` must outlive this.
  explicit MemoryStrategy(const RunContext& run);

  // Excludes memory before the next step from its peak.
  void Restart();

  // Moves the blocks of `tiers` that --offload_strategy selects, then returns
  // the bytes of all ranks, which are on one machine, if they exceed the limit
  // and a higher rung may exist, otherwise 0. A collective.
  absl::StatusOr<int64_t> AfterStep(OffloadTiers& tiers);

  // Returns the rung that rank 0 chooses, since predictions differ slightly
  // between ranks. Only differences of predictions matter; the actual memory is
  // `used`. A collective.
  absl::StatusOr<MemoryRung> NextRung(int64_t used) const;

  // Writes a checkpoint of the current state, without a copy, after every rank
  // has verified that it can create the tiers of the rung. Errors leave the run
  // unchanged. A collective.
  absl::StatusOr<StrategyCheckpoint> SaveFor(
      const absl::StatusOr<MemoryRung>& rung, RankSetup& setup,
      CheckpointHistory& checkpoints, std::optional<double> eval_loss) const;

  // Records that the run has changed to the rung after `steps` steps, or never
  // changes again.
  const StrategyChange& NoteChange(const MemoryRung& rung, int64_t steps,
                                   int64_t used);
  void GiveUp() { may_change_ = false; }

  const std::vector<StrategyChange>& changes() const { return changes_; }
  // The peak over all steps.
  int64_t peak() const;

 private:
  const RunContext& run_;
  const int64_t limit_;
  std::optional<MemoryWatch> watch_;
  int64_t peak_ = 0;        // Resident, outside of watched steps.
  bool may_change_ = true;  // Higher rungs may exist.
  topology::MemoryStrategy strategy_;
  std::vector<StrategyChange> changes_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_MEMORY_STRATEGY_H_
