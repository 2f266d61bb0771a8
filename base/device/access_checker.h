// AccessChecker: finds conflicting memory accesses that no event orders.
//
//   AccessChecker checker;
//   const int compute = checker.AddQueue("compute");
//   const Operation gemm = checker.Begin(compute, "Gemm", place);
//   TESSERA_RETURN_IF_ERROR(checker.Access(gemm, ReadsFrom(weights)));
//
// Each queue has a vector clock: for each queue, the last operation that
// precedes the next one enqueued here (Fidge 1988; Mattern 1989; as in
// PyTorch's CUDA sanitizer). Two accesses to one byte, of which at least one
// writes, must be ordered by the clocks. Checks are made when work is enqueued,
// so a missing wait is found regardless of the order in which the work
// executes. They compare byte ranges instead of tensors, and so detect
// overlapping views.
//
// The host is queue 0. Work enqueued after a host access is ordered after it;
// host accesses are ordered after work that the host has waited for. All host
// threads count as one. Not thread-safe.
#ifndef TESSERA_BASE_DEVICE_ACCESS_CHECKER_H_
#define TESSERA_BASE_DEVICE_ACCESS_CHECKER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "base/device/device.h"

namespace tessera {

class AccessChecker {
 public:
  static constexpr int kHost = 0;

  // For each queue, the number of the last operation that happened before.
  using Clock = absl::InlinedVector<uint64_t, 16>;

  struct Operation {
    int queue = kHost;
    uint64_t number = 0;  // Counts the queue's operations from 1.
    std::string_view name;
    SourcePlace place = {};
  };

  AccessChecker() { AddQueue("host"); }

  // Returns the queue's number.
  int AddQueue(std::string_view name);

  // Begins the next operation of a queue. `name` must stay valid.
  Operation Begin(int queue, std::string_view name, const SourcePlace& place);
  // Returns Internal, with both operations, their queues and source locations,
  // if a conflicting operation on the same bytes is not ordered before this
  // one.
  absl::Status Access(const Operation& operation, const MemoryAccess& access);
  // An access of the host.
  absl::Status HostAccess(std::string_view what, const SourcePlace& place,
                          const MemoryAccess& access);

  const Clock& ClockOf(int queue) const { return queues_[At(queue)].clock; }
  // Orders later work of the queue (or the host) after `clock`.
  void Join(int queue, const Clock& clock);
  // True if the host has waited for all operations of `clock`.
  bool HostKnows(const Clock& clock) const {
    const Clock& known = queues_[kHost].clock;
    for (size_t i = 0; i < clock.size(); ++i) {
      if (clock[i] > (i < known.size() ? known[i] : 0)) return false;
    }
    return true;
  }

  // Drops the history that the host has waited for, because all later accesses
  // are ordered after it. Callers invoke it occasionally after host waits.
  void ForgetPast();
  size_t segments() const { return segments_.size(); }

  // Sets the range of device memory, where each access must lie within one
  // allocation.
  void SetDeviceMemory(const std::byte* begin, size_t size);
  void Allocate(const std::byte* data, size_t size);
  // Returns Internal if work that uses the memory may still be running.
  absl::Status Free(const std::byte* data);

 private:
  // Bytes with the same history, from the key of the map to `end`.
  struct Segment {
    uintptr_t end = 0;
    Operation write;               // The last write; number 0 if there is none.
    std::vector<Operation> reads;  // The last read of each queue since then.
  };
  using Segments = std::map<uintptr_t, Segment>;
  struct QueueState {
    std::string name;
    uint64_t operations = 0;
    Clock clock;
  };

  static size_t At(int queue) { return static_cast<size_t>(queue); }
  static bool IsIn(const Clock& clock, int queue, uint64_t number) {
    return At(queue) < clock.size() && clock[At(queue)] >= number;
  }
  bool ComesAfter(const Operation& later, const Operation& earlier) const {
    return later.queue == earlier.queue ||
           IsIn(queues_[At(later.queue)].clock, earlier.queue, earlier.number);
  }
  Segments::iterator SplitAt(uintptr_t at);
  absl::Status CheckAllocated(const Operation& operation, uintptr_t begin,
                              uintptr_t end) const;
  absl::Status CheckSegment(const Operation& operation, bool writes,
                            const Segment& segment, uintptr_t begin) const;
  std::string Describe(const Operation& operation) const;

  std::vector<QueueState> queues_;
  Segments segments_;
  uintptr_t device_begin_ = 0;
  uintptr_t device_end_ = 0;
  std::map<uintptr_t, uintptr_t> allocations_;  // From begin to end.
};

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_ACCESS_CHECKER_H_
