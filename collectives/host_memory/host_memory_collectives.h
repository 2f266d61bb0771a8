// HostMemoryCollectives: all collectives of a group whose ranks can access each
// other's memory.
//
//   condition                                 method
//   message fits into notes (up to 568 bytes) notes
//   large, all buffers accessible             zero copy
//   otherwise                                 staged through windows
//
// Every method reduces as a left fold in rank order with one rounding, so the
// bits of a result depend only on the inputs.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_HOST_MEMORY_COLLECTIVES_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_HOST_MEMORY_COLLECTIVES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "collectives/engine/engine.h"
#include "collectives/host_memory/call.h"
#include "collectives/host_memory/group.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives::host_memory {

// Decides whether a call should ask its peers for the addresses of their
// buffers.
//
//   if (history.Asks(kind, bytes)) {
//     const bool enough = ...;  // Exchange addresses.
//     history.Learn(kind, bytes, enough);
//   }
//
// Asking costs a synchronisation (a third of the time of a small all_gather),
// which is wasted if buffers are not in shared memory. After a negative answer
// the next calls of the same kind and size class do not ask: 1, then 3, and so
// on up to a limit. Large messages always ask, because the cost is negligible
// for them.
//
// All ranks make the same calls and get the same answers, so their histories
// agree without communication.
class ExchangeHistory {
 public:
  // Messages of this size and more always ask.
  static constexpr int64_t kLargeBytes = int64_t{1} << 20;

  // `most_skips`: 0 (always ask) to 255.
  explicit ExchangeHistory(int64_t most_skips)
      : most_skips_(static_cast<uint8_t>(most_skips)) {}

  // Returns true if this call should ask; otherwise counts it as skipped.
  // Requires bytes > 0.
  bool Asks(OpKind kind, int64_t bytes);

  // Records the answer: `enough` if all buffers were accessible.
  void Learn(OpKind kind, int64_t bytes, bool enough);

 private:
  struct Entry {
    uint8_t skips = 0;  // Calls to skip after the last negative answer.
    uint8_t left = 0;   // Calls still to skip.
  };
  static constexpr size_t kSizeClasses =
      20;  // Powers of two below kLargeBytes.

  Entry& EntryOf(OpKind kind, int64_t bytes);

  const uint8_t most_skips_;
  std::array<std::array<Entry, kSizeClasses>, kCollectiveKinds.size()>
      entries_ = {};
};

class HostMemoryCollectives {
 public:
  explicit HostMemoryCollectives(Group& group)
      : state_(group), history_(group.tuning().place_skips) {}

  // Executes a valid collective. Call it between Group::Enter and Group::Leave.
  absl::Status Run(const Operation& operation, OperationContext& context);

  // Engine::Plan: plans operations that are never zero copy.
  std::unique_ptr<OperationPlan> Plan(const Operation& operation,
                                      OperationContext& context);

 private:
  CollectiveState state_;
  ExchangeHistory history_;
};

}  // namespace tessera::collectives::host_memory

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_HOST_MEMORY_COLLECTIVES_H_
