// CollectiveLog: when a rank's collectives began and ended, in all of its
// groups, and a way to end all of these.
//
//   auto log = std::make_shared<CollectiveLog>();
//   auto engine = MeasureEngine(std::move(inner), log);   // measured_engine.h
//   ...
//   for (const LoggedCollective& one : log->Take()) ...
#ifndef TESSERA_TOOLS_TRAIN_LOOP_COLLECTIVE_LOG_H_
#define TESSERA_TOOLS_TRAIN_LOOP_COLLECTIVE_LOG_H_

#include <cstdint>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "collectives/engine/engine.h"
#include "collectives/operation/operation.h"

namespace tessera::train {

// Times are MonotonicNanos.
struct LoggedCollective {
  collectives::OpKind kind = collectives::OpKind::kBarrier;
  int64_t bytes = 0;  // Of the message; 0 where ranks may differ.
  int64_t ranks = 1;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  // Of model state: a gather of weights or a reduction of gradients.
  bool is_state = false;
};

// Thread-safe.
class CollectiveLog {
 public:
  void Add(const LoggedCollective& one);

  // All since the last call, in the order of their ends. Of more than a million
  // the last are left out.
  std::vector<LoggedCollective> Take();

  // Groups that are made while it is off are not logged, as those of work in
  // the background, which a rank does not wait for.
  void SetOn(bool on);
  bool is_on() const;

  // Ends every group of the rank, those of the background too, as
  // Engine::Abort. Without it an error in one group reaches the others' waiters
  // only by their deadlines.
  void AbortAll(const absl::Status& reason);

  // For engines, while they live.
  void Join(collectives::Engine* engine);
  void Leave(collectives::Engine* engine);

 private:
  mutable std::mutex mutex_;
  std::vector<LoggedCollective> entries_;
  bool is_on_ = true;
  std::mutex engines_mutex_;  // Before mutex_.
  std::set<collectives::Engine*> engines_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_COLLECTIVE_LOG_H_
