// Helpers for tests of checkpoints: ranks as threads, small states stamped with
// known bits, and the toy model trained between checkpoints.
#ifndef TESSERA_ZERO3_CHECKPOINT_TESTING_STATE_H_
#define TESSERA_ZERO3_CHECKPOINT_TESTING_STATE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "collectives/communicator.h"
#include "zero3/checkpoint/checkpoint_writer.h"
#include "zero3/layout/state_format.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/state/sharded_state.h"

namespace tessera::zero3::testing {

struct RankGroups {
  int64_t rank = 0;  // In the world.
  collectives::Communicator* world = nullptr;
  collectives::Communicator* shard = nullptr;
  collectives::Communicator* replicas = nullptr;  // Null if one replica.

  ShardedStateGroups of_state() const {
    return {.shard = shard, .replicas = replicas};
  }
  CheckpointGroups of_checkpoint() const {
    return {.shard = shard, .replicas = replicas, .world = world};
  }
};

// Runs a function on `ranks` threads for each of `groups` groups. Returns the
// statuses by world rank. Rank r is rank r % ranks of group r / ranks.
std::vector<absl::Status> OnRanks(
    int64_t ranks, int64_t groups,
    const std::function<absl::Status(const RankGroups&)>& body);

// Two parameters with few elements.
ModelParameters SmallModel();

// Saves a state of SmallModel, stamped with `seed`, from `ranks` ranks. Returns
// the results by rank.
std::vector<absl::Status> SaveSmall(const CheckpointWriterOptions& options,
                                    int64_t ranks, int64_t seed);

// Loads the checkpoint at `path` into one rank and checks the stamp.
absl::Status CheckSmall(const std::string& path, int64_t seed);

// Loads the latest checkpoint in `directory` into one rank and checks the
// stamp. Returns its step.
absl::StatusOr<int64_t> CheckLatestSmall(const std::string& directory);

// The bits of a state, to compare differently sharded states: the bytes of an
// element and of its block's scale, by parameter, part and global element.
using StateBits =
    std::map<std::tuple<std::string, StatePart, int64_t>, std::string>;

// Collects the bits of the elements that each rank owns. Add returns
// Unavailable if an element was added before with other bits. Thread-safe.
class BitCollector {
 public:
  absl::Status Add(ShardedState& state);
  StateBits bits() const;

 private:
  mutable absl::Mutex mutex_;
  StateBits bits_ ABSL_GUARDED_BY(mutex_);
};

// Sets all elements of this rank to bits derived from `seed` and the global
// element, and the number of steps and the loss scale to `seed`.
absl::Status Stamp(ShardedState& state, int64_t seed);

// OK if Stamp has set the state, with any sharding.
absl::Status CheckStamp(ShardedState& state, int64_t seed);

// Sets the initial values of testing::Train.
absl::Status FillFirst(ShardedState& state);

// Runs steps [begin, end) on the data in `parts`, as testing::Train does.
absl::Status TrainSteps(ShardedState& state, const RankGroups& groups,
                        int64_t parts, int64_t begin, int64_t end);

// Creates an empty directory in the test's temporary directory.
std::string NewDirectory(const std::string& name);

// The first error, if any.
absl::Status AllOk(const std::vector<absl::Status>& statuses);

}  // namespace tessera::zero3::testing

#endif  // TESSERA_ZERO3_CHECKPOINT_TESTING_STATE_H_
