// Training of the toy model between checkpoints, for tests.
#ifndef TESSERA_ZERO3_CHECKPOINT_TOY_RUN_H_
#define TESSERA_ZERO3_CHECKPOINT_TOY_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "zero3/checkpoint/rank_threads.h"
#include "zero3/state/sharded_state.h"

namespace tessera::zero3::testing {

// The first values of testing::Train.
absl::Status FillFirst(ShardedState& state);

// Steps [begin, end) of the data in `parts`, as testing::Train makes them.
absl::Status TrainSteps(ShardedState& state, const RankGroups& groups,
                        int64_t parts, int64_t begin, int64_t end);

// A new empty directory below that of the test.
std::string NewDirectory(const std::string& name);

// The first that is not OK, if any.
absl::Status AllOk(const std::vector<absl::Status>& statuses);

}  // namespace tessera::zero3::testing

#endif  // TESSERA_ZERO3_CHECKPOINT_TOY_RUN_H_
