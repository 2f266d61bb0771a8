// The bits of a state by global element, to compare states that are sharded
// differently, for tests.
#ifndef TESSERA_ZERO3_CHECKPOINT_STATE_BITS_H_
#define TESSERA_ZERO3_CHECKPOINT_STATE_BITS_H_

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "zero3/checkpoint/state_format.h"
#include "zero3/state/sharded_state.h"

namespace tessera::zero3::testing {

// An element's bytes, and those of its block's scale: by name of the parameter,
// part and element.
using StateBits =
    std::map<std::tuple<std::string, StatePart, int64_t>, std::string>;

// Adds what this rank owns. Unavailable where an element that is there already
// has other bits. From any thread.
class BitCollector {
 public:
  absl::Status Add(ShardedState& state);
  StateBits bits() const;

 private:
  mutable absl::Mutex mutex_;
  StateBits bits_ ABSL_GUARDED_BY(mutex_);
};

// Gives everything that this rank owns bits that follow from `seed` and the
// global element, and the state `seed` as its number of steps and loss scale.
absl::Status Stamp(ShardedState& state, int64_t seed);

// OK where the state is as Stamp has left one of any sharding.
absl::Status CheckStamp(ShardedState& state, int64_t seed);

}  // namespace tessera::zero3::testing

#endif  // TESSERA_ZERO3_CHECKPOINT_STATE_BITS_H_
