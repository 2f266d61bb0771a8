// For tests: measures the memory and traffic of the ranks of a small run by the
// runtime's own accounting.
#ifndef TESSERA_TOOLS_TRAIN_TESTING_MEASURED_RUN_H_
#define TESSERA_TOOLS_TRAIN_TESTING_MEASURED_RUN_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/engine/engine.h"
#include "collectives/operation/operation.h"
#include "offload/tier/accounting.h"
#include "tools/train/predict/message_table.h"
#include "tools/train/settings/run_options.h"

namespace tessera::train {

// Counts the bytes of collectives by group. Thread-safe.
class CollectiveCount {
 public:
  // The group's ranks in the world, ascending.
  using Group = std::vector<int64_t>;
  using Table = std::map<std::pair<Group, collectives::OpKind>, int64_t>;

  void Add(const Group& group, collectives::OpKind kind, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    table_[{group, kind}] += bytes;
  }
  // Returns the counts since the last call.
  Table Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(table_, {});
  }

 private:
  std::mutex mutex_;
  Table table_;
};

// Wraps the world's engine and counts the bytes of the collectives of it and of
// all groups made from it. `count` must outlive the engine and its groups.
std::unique_ptr<collectives::Engine> CountEngine(
    std::unique_ptr<collectives::Engine> engine, CollectiveCount& count);

struct MeasuredRank {
  // ShardedState::usage() over the whole run.
  offload::Usage state;
  // Activation pools and tensors between stages, after the last step.
  int64_t activations = 0;
  // The collectives of the last step.
  CollectiveCount::Table collectives;
  // The traffic of the last step by the communicators' statistics.
  std::vector<AxisMessages> messages;
};

// Runs three steps with threads as ranks. `prepare` may add tiers to a rank's
// options, and may be null.
absl::StatusOr<std::vector<MeasuredRank>> MeasureRun(
    const RunOptions& options,
    const std::function<absl::Status(int64_t rank, RunOptions&)>& prepare = {});

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_TESTING_MEASURED_RUN_H_
