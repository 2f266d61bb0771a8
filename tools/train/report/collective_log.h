// A log of a rank's collectives in all of its groups, which can also abort all
// of these groups.
//
//   auto log = std::make_shared<CollectiveLog>();
//   TESSERA_ASSIGN_OR_RETURN(
//       auto world, Communicator::Create(
//                       MeasureEngine(std::move(engine), log), options));
//   ...
//   for (const LoggedCollective& one : log->Take()) ...
#ifndef TESSERA_TOOLS_TRAIN_REPORT_COLLECTIVE_LOG_H_
#define TESSERA_TOOLS_TRAIN_REPORT_COLLECTIVE_LOG_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "collectives/engine/engine.h"
#include "collectives/operation/operation.h"

namespace tessera::train {

// A logged collective. Times are MonotonicNanos.
struct LoggedCollective {
  collectives::OpKind kind = collectives::OpKind::kBarrier;
  int64_t bytes = 0;  // Message size; 0 if it may differ between ranks.
  int64_t ranks = 1;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  // A gather of weights or a reduction of gradients.
  bool is_state = false;
};

// Thread-safe.
class CollectiveLog {
 public:
  void Add(const LoggedCollective& one);

  // Returns the entries since the last call, ordered by end. At most the first
  // 2^20 of them are kept.
  std::vector<LoggedCollective> Take();

  // Groups that are created while the log is off are not logged. Used for
  // background work for which a rank does not wait.
  void SetOn(bool on);
  bool is_on() const;

  // Aborts every group of the rank (Engine::Abort), including background
  // groups. Without this, an error in one group reaches waiters in other groups
  // only at their deadlines.
  void AbortAll(const absl::Status& reason);

  // Registers a live engine for AbortAll.
  void Join(collectives::Engine* engine);
  void Leave(collectives::Engine* engine);

 private:
  mutable std::mutex mutex_;
  std::vector<LoggedCollective> entries_;
  bool is_on_ = true;
  std::mutex engines_mutex_;  // Locked before mutex_.
  std::set<collectives::Engine*> engines_;
};

// Wraps an engine and logs the collectives of it and of all groups created from
// it. Point-to-point messages are not logged. Neither argument may be null.
std::unique_ptr<collectives::Engine> MeasureEngine(
    std::unique_ptr<collectives::Engine> engine,
    std::shared_ptr<CollectiveLog> log);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_COLLECTIVE_LOG_H_
