// FlightRecorder, which keeps the last operations and the totals of one
// communicator, and their export as JSON and traces.
//
//   FlightRecorder recorder(1024);
//   OperationRecord record{.signature = s, .bytes = 4096, .begin_ns = now};
//   uint64_t ticket = recorder.Begin(record);
//   record.end_ns = later;
//   recorder.End(ticket, record);
//   recorder.Statistics();          // per operation and algorithm
//   Total(recorder.Statistics());   // of all operations
//   recorder.Recent();              // oldest first
//
// Thread-safe; a Begin and an End together take some tens of nanoseconds. Runs
// of prepared operations that did not wait are only counted (Pass), in some
// nanoseconds.
#ifndef TESSERA_COLLECTIVES_RECORD_FLIGHT_RECORDER_H_
#define TESSERA_COLLECTIVES_RECORD_FLIGHT_RECORDER_H_

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "collectives/operation/signature.h"

namespace tessera::collectives {

// One operation. Times are MonotonicNanos.
struct OperationRecord {
  Signature signature;
  OpKind kind = OpKind::kBarrier;  // Kind of the call (the signature of a
                                   // receive has kSend).
  int64_t bytes = 0;
  int64_t peer = -1;  // For point-to-point operations.
  int64_t begin_ns = 0;
  int64_t end_ns = 0;  // 0: still running.
  absl::StatusCode code = absl::StatusCode::kOk;
  // More than 1: runs of a prepared operation that did not wait. `signature` is
  // that of the last one, the times are of the last one that was timed.
  int64_t runs = 1;
};

// All finished operations of one kind and algorithm, or of several.
struct OperationTotals {
  int64_t count = 0;
  int64_t failed = 0;
  int64_t bytes = 0;       // Bytes and nanoseconds of successful operations.
  int64_t busy_bytes = 0;  // Bytes on the busiest link (BusFactor).
  int64_t largest_bytes = 0;
  int64_t ns = 0;
  int64_t shortest_ns = 0;
  int64_t longest_ns = 0;

  void Add(const OperationTotals& other);
  // The operations after `before`, earlier totals of the same operations. The
  // shortest, longest and largest ones are of all operations.
  OperationTotals Since(const OperationTotals& before) const;

  // The mean time of an operation in nanoseconds. 0 without measurements.
  double MeanNanos() const;

  // GB/s (10^9): bytes per time, and per link (the "busbw" of nccl-tests,
  // doc/PERFORMANCE.md). 0 without measurements.
  double AlgorithmBandwidth() const;
  double BusBandwidth() const;
};

using StatisticsTable = std::map<std::pair<OpKind, Algorithm>, OperationTotals>;

// The totals of all entries.
OperationTotals Total(const StatisticsTable& statistics);

// The share of a message that an optimal algorithm sends over each link:
// all_reduce 2(n-1)/n; reduce_scatter, all_gather, all_to_all (n-1)/n; the
// others 1. Source: nccl-tests, doc/PERFORMANCE.md.
double BusFactor(OpKind kind, int64_t ranks);

// The group and rank of the records.
struct RecordedGroup {
  std::string name;
  std::string engine;
  int64_t rank = 0;
  int64_t ranks = 1;
  int64_t world_rank = 0;
  // Signature::group, or another number for the same group on a device; the
  // same on all ranks of the group.
  uint32_t id = 0;
};

class FlightRecorder;

// Follows the operations of a rank in a group and in all groups split from it.
class OperationObserver {
 public:
  virtual ~OperationObserver() = default;

  // A group was created; returns a number for the calls below. `recorder` is
  // valid until Leave returns. Any thread.
  virtual int64_t Join(const RecordedGroup& group,
                       const FlightRecorder& recorder) = 0;
  virtual void Leave(int64_t number) = 0;

  // Called on the thread that executes an operation, one at a time for each
  // group. Must not call the recorder.
  virtual void Begin(int64_t number, const OperationRecord& record) = 0;
  virtual void End(int64_t number, const OperationRecord& record) = 0;

  // A run of a prepared operation that did not wait has ended, without Begin
  // and End. The record need not have times. Should take a few nanoseconds;
  // messages may begin and end at the same time.
  virtual void Pass(int64_t number, const OperationRecord& record) = 0;
};

class FlightRecorder {
 public:
  // Keeps the last `capacity` (at least 1) operations of a group of `ranks`.
  // If the group was split from another one, `parent` is the recorder of that
  // group, which may be destroyed first.
  FlightRecorder(int64_t capacity, int64_t ranks,
                 const FlightRecorder* parent = nullptr);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // From now on `observer` (may be null) follows the operations of `group`.
  // Called at most once, before the first operation.
  void Observe(std::shared_ptr<OperationObserver> observer,
               const RecordedGroup& group);

  // The memory in bytes of a recorder of `capacity` operations.
  static int64_t BytesFor(int64_t capacity);

  // Records the start of an operation; returns its number for End.
  uint64_t Begin(const OperationRecord& record);
  // Records the end of the operation with the complete `record`.
  void End(uint64_t ticket, const OperationRecord& record);

  // The runs of one prepared operation that did not wait.
  class Runs {
   public:
    // One run in this many is timed, and stands for the others.
    static constexpr int64_t kRunsPerTime = 64;
    bool IsNextTimed() const {
      return count_.load(std::memory_order_relaxed) % kRunsPerTime == 0;
    }

   private:
    friend class FlightRecorder;
    OperationTotals Totals() const;

    std::atomic<int64_t> count_ = 0;
    std::atomic<uint64_t> last_ = 0;  // The number of the last run.
    // Guarded by the recorder's mutex.
    OperationRecord record_;  // Of the last run that was timed.
    OperationTotals timed_;
  };

  // Begins and ends the runs of a prepared operation. They are one at a time.
  Runs* AddRuns();
  void EndRuns(Runs* runs);
  // Counts a run that did not wait. `record` has times if it is timed.
  void Pass(Runs& runs, const OperationRecord& record) {
    if (record.end_ns != 0) AddTime(runs, record);
    runs.last_.store(record.signature.sequence, std::memory_order_relaxed);
    runs.count_.store(runs.count_.load(std::memory_order_relaxed) + 1,
                      std::memory_order_relaxed);
    if (observer_ != nullptr) observer_->Pass(observed_as_, record);
  }

  // Oldest first. The runs of a prepared operation that did not wait are one
  // record.
  std::vector<OperationRecord> Recent() const;
  StatisticsTable Statistics() const;
  // Includes the groups that were split from this one, and from those, also if
  // they no longer exist.
  StatisticsTable StatisticsWithSubgroups() const;

 private:
  struct Family;
  struct Slot {
    uint64_t ticket = 0;
    OperationRecord record;
  };

  void AddTime(Runs& runs, const OperationRecord& record);
  OperationTotals& TotalsFor(const OperationRecord& record);

  const int64_t ranks_;
  // Its own, then the families of the groups that it was split from.
  std::vector<std::shared_ptr<Family>> families_;
  std::shared_ptr<OperationObserver> observer_;
  int64_t observed_as_ = 0;
  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  uint64_t next_ticket_ = 1;
  std::vector<OperationTotals> totals_;  // By kind, then algorithm.
  std::list<Runs> runs_;
};

// One JSON object: `group`, `id`, `engine`, `rank`, `ranks`, `pid`, `error`
// (code and message, null if there is none), `operations` (oldest first:
// `sequence`, `operation`, `algorithm`, `dtype`, `count`, `bytes`, `peer`,
// `begin_ns`, `end_ns` (null while it runs), `status`, `runs` if there are
// several) and `statistics` (an
// entry per operation and algorithm with the members of OperationTotals,
// `mean_ns`, `algbw_GBps` and `busbw_GBps`).
std::string RecordsToJson(const RecordedGroup& group,
                          std::span<const OperationRecord> records,
                          const StatisticsTable& statistics,
                          const absl::Status& error);

// A trace for Perfetto (ui.perfetto.dev) or chrome://tracing: wraps events in
// the Trace Event Format, for example of several ranks, in {"traceEvents":
// [...]}. Each text has events separated by commas, or none.
std::string TraceOf(std::span<const std::string> events);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_RECORD_FLIGHT_RECORDER_H_
