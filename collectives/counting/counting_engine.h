// CountingEngine: a world of n ranks of which only this one exists. Operations
// are over at once, and counted: what would a program send on that many ranks?
//
//   auto memory = std::make_shared<CountingMemory>();
//   auto counts = std::make_shared<MessageCounts>();
//   TESSERA_ASSIGN_OR_RETURN(
//       auto engine, CreateCountingEngine({.rank = Rank(3), .ranks = 64,
//                                          .memory = memory, .counts =
//                                          counts}));
//   TESSERA_ASSIGN_OR_RETURN(auto world,
//                            Communicator::Create(std::move(engine)));
//   ... what rank 3 does ...
//   for (const MessageCounts::Group& group : counts->groups()) ...
//
// Where a buffer lies in `memory` an operation moves nothing. Other buffers are
// what ranks agree on: there all other ranks have what this one has, so that an
// all-gather repeats this rank's block, sums and other reductions leave what is
// given, and what only another rank knows (broadcasts, messages) leaves the
// output as it is. Groups are made as by any engine, and counted apart.
#ifndef TESSERA_COLLECTIVES_COUNTING_COUNTING_ENGINE_H_
#define TESSERA_COLLECTIVES_COUNTING_COUNTING_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/tensor/counting_memory.h"
#include "collectives/engine/engine.h"
#include "collectives/operation/operation.h"
#include "topology/rank.h"

namespace tessera::collectives {

// Of one kind, in one group.
struct OperationCount {
  int64_t count = 0;
  int64_t bytes = 0;  // As Communicator::Statistics counts them.
  int64_t largest = 0;

  friend bool operator==(const OperationCount&,
                         const OperationCount&) = default;
};

// What the engines of one rank did. Thread-safe.
class MessageCounts {
 public:
  struct Group {
    std::vector<Rank> members = {};  // Ranks of the world.
    // Of which it is a subgroup; the world has none.
    std::optional<size_t> parent = std::nullopt;
    std::map<OpKind, OperationCount> operations = {};
    // Of AllocateShared.
    int64_t shared_bytes = 0;
    int64_t shared_peak = 0;
  };

  // By number, in the order in which they were made; 0 is the world.
  std::vector<Group> groups() const;
  // The number of the group that ran the last operation.
  size_t last_group() const;
  // Begins to count operations anew.
  void ResetOperations();

  // For engines.
  size_t AddGroup(std::vector<Rank> members, std::optional<size_t> parent);
  void AddOperation(size_t group, OpKind kind, int64_t bytes);
  void AddShared(size_t group, int64_t bytes);

 private:
  mutable std::mutex mutex_;
  std::vector<Group> groups_;
  size_t last_group_ = 0;
};

struct CountingWorld {
  Rank rank = {};
  int64_t ranks = 1;
  std::shared_ptr<CountingMemory> memory = nullptr;
  std::shared_ptr<MessageCounts> counts = nullptr;
};

// Of rank `rank` of the world. InvalidArgument where there is no such rank, or
// memory or counts are missing.
absl::StatusOr<std::unique_ptr<Engine>> CreateCountingEngine(
    const CountingWorld& world);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_COUNTING_COUNTING_ENGINE_H_
