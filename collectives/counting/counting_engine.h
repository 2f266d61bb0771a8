// CountingEngine: one rank of a world whose other ranks do not exist. Each
// operation completes immediately and is counted, which shows the messages of a
// program on n ranks without running them.
//
//   auto memory = std::make_shared<CountingMemory>();
//   auto counts = std::make_shared<MessageCounts>();
//   TESSERA_ASSIGN_OR_RETURN(
//       auto engine,
//       CreateCountingEngine({.rank = Rank(3),
//                             .ranks = 64,
//                             .memory = memory,
//                             .counts = counts}));
//   TESSERA_ASSIGN_OR_RETURN(auto world,
//                            Communicator::Create(std::move(engine)));
//   ... the program of rank 3 ...
//   for (const MessageCounts::Group& group : counts->groups()) ...
//
// Operations on buffers in `memory` move no data. For other buffers, such as
// sizes and hashes that ranks compare, every other rank is assumed to pass the
// same input as this one: all-gathers repeat this rank's block, reductions
// return their input, and operations whose result only another rank knows
// (broadcasts, receives) leave the output unchanged. Subgroups are created as
// on any engine and counted separately.
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

// The operations of one kind in one group.
struct OperationCount {
  int64_t count = 0;
  int64_t bytes = 0;    // As Communicator::Statistics counts them.
  int64_t largest = 0;  // Bytes of the largest one.

  friend bool operator==(const OperationCount&,
                         const OperationCount&) = default;
};

// The operations of all engines of one rank. Thread-safe.
class MessageCounts {
 public:
  struct Group {
    std::vector<Rank> members = {};  // Ranks of the world.
    // The index of the group that was split; nullopt for the world.
    std::optional<size_t> parent = std::nullopt;
    std::map<OpKind, OperationCount> operations = {};
    // Bytes allocated by AllocateShared: now, and the maximum.
    int64_t shared_bytes = 0;
    int64_t shared_peak = 0;
  };

  // In the order of their creation; 0 is the world.
  std::vector<Group> groups() const;
  // The index of the group that ran the last operation.
  size_t last_group() const;
  // Sets the counts of operations to zero.
  void ResetOperations();

  // Called by engines.
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

// The engine of rank `world.rank`. InvalidArgument if there is no such rank, or
// if memory or counts are null.
absl::StatusOr<std::unique_ptr<Engine>> CreateCountingEngine(
    const CountingWorld& world);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_COUNTING_COUNTING_ENGINE_H_
