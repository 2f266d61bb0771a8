// CountEngine: an engine like another one, that counts the bytes of its
// collectives, and those of all groups made from it, by the group's ranks in
// the world. For tests.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_COUNTING_ENGINE_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_COUNTING_ENGINE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "collectives/engine/engine.h"
#include "collectives/operation/operation.h"

namespace tessera::train {

// Thread-safe.
class CollectiveCount {
 public:
  // The group's ranks in the world, ascending.
  using Group = std::vector<int64_t>;
  using Table = std::map<std::pair<Group, collectives::OpKind>, int64_t>;

  void Add(const Group& group, collectives::OpKind kind, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    table_[{group, kind}] += bytes;
  }
  // All since the last call.
  Table Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(table_, {});
  }

 private:
  std::mutex mutex_;
  Table table_;
};

// Of the world; `count` outlives the engine and its groups.
std::unique_ptr<collectives::Engine> CountEngine(
    std::unique_ptr<collectives::Engine> engine, CollectiveCount& count);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_COUNTING_ENGINE_H_
