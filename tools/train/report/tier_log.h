// TierLog: what a rank's thread did with its memory tiers, and what these had
// under way meanwhile.
//
//   auto log = std::make_shared<TierLog>();      // on the rank's thread
//   TimedTier tier(file_tier, log);              // timed_tier.h
//   ... a step ...
//   log->Stamp();
//   const TierTime time = log->Take();
//
// That the thread waits for an operation is not seen directly: it is when it
// neither computes nor is ready to. So each stamp, taken at every call of a
// tier, reads how long the thread has had a processor and how long it was
// waiting for one (from /proc/thread-self/schedstat; 0 where there is none).
#ifndef TESSERA_TOOLS_TRAIN_REPORT_TIER_LOG_H_
#define TESSERA_TOOLS_TRAIN_REPORT_TIER_LOG_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/os/unique_fd.h"
#include "tools/train/report/spans.h"

namespace tessera::train {

// From one stamp to the next.
struct TierSegment {
  Span span = {};
  // In which the thread slept, and nobody kept it from a processor.
  int64_t blocked_ns = 0;
};

struct TierTime {
  std::vector<Span> calls = {};  // Of the rank's thread, within the tiers.
  // Operations, from their begin to their end, or to now.
  std::vector<Span> in_flight = {};
  std::vector<TierSegment> segments = {};
};

class TierLog {
 public:
  // The rank's thread makes it.
  TierLog();

  // A call of this thread began then and ends now. Nothing on other threads.
  void Called(int64_t begin_ns);
  // An operation began then, which the returned number names; and it is over.
  // From any thread. That it is over may be heard of after its waiter has gone
  // on.
  uint64_t Began(int64_t begin_ns);
  void Ended(uint64_t operation);

  // The rest is called by the rank's thread.
  void Stamp();
  TierTime Take();

 private:
  struct Moment {
    int64_t ns = 0;
    int64_t on_processor_ns = 0;
    int64_t kept_off_ns = 0;
  };
  Moment Now() const;

  const std::thread::id thread_;
  const UniqueFd schedstat_;
  Moment last_;
  std::vector<Span> calls_;
  std::vector<TierSegment> segments_;
  std::mutex mutex_;
  // Under mutex_.
  std::vector<Span> in_flight_;
  std::map<uint64_t, int64_t> under_way_;  // The begins.
  uint64_t next_ = 0;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_TIER_LOG_H_
