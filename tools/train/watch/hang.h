// Which rank of a job hangs, and who waits for whom.
//
//   HangDetector detector(absl::Seconds(30));
//   for (;; absl::SleepFor(absl::Seconds(1))) {
//     for (int64_t rank : detector.Find(places, MonotonicNanos())) ...
//   }
//
// A rank hangs if its place has not changed for longer than the timeout and it
// does not merely wait for others: it is not in a collective or a message, or
// it is in a collective that its other ranks have left long ago while some of
// them wait for it. Without a timeout the limit is ten times the longest step,
// at least a minute, from the fourth step on.
#ifndef TESSERA_TOOLS_TRAIN_WATCH_HANG_H_
#define TESSERA_TOOLS_TRAIN_WATCH_HANG_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tools/train/watch/live_place.h"

namespace tessera::train {

// The operation that a rank waits in, and the ranks that it waits for.
struct RankWait {
  // The ranks that have not begun the operation. Empty: all have, or they are
  // unknown.
  std::vector<int64_t> ranks = {};
  std::string operation = "";  // "all_reduce #13 of tp, 4096 bytes"
  int64_t since_ns = 0;
};

// nullopt if no operation of the rank runs. `places` are those of the job that
// are known.
std::optional<RankWait> WaitOf(const LivePlace& place,
                               std::span<const LivePlace> places);

// "rank 1: load data, step 5, for 10.2 s, training_data.cc:120; waits ...".
std::string DescribePlace(const LivePlace& place,
                          std::span<const LivePlace> places, int64_t now_ns);

// A line for each rank, the hung ones first and with their stacks.
std::string DescribePlaces(std::span<const LivePlace> places,
                           std::span<const int64_t> hung, int64_t now_ns);

class HangDetector {
 public:
  // nullopt: the default of the comment above.
  explicit HangDetector(std::optional<absl::Duration> timeout)
      : timeout_(timeout) {}

  // The ranks that hang. Call it about once a second: after a longer pause of
  // the caller, all ranks are taken to have moved. Reading or writing files
  // counts as a change while the rank loads, restores or saves.
  std::vector<int64_t> Find(std::span<const LivePlace> places, int64_t now_ns);

  // The time without a change after which this rank would hang.
  absl::Duration LimitOf(const LivePlace& place) const;

 private:
  struct FileTraffic {
    int64_t bytes = 0;
    int64_t moved_ns = 0;
  };
  bool IsStalled(const LivePlace& place, int64_t now_ns);

  const std::optional<absl::Duration> timeout_;
  int64_t called_ns_ = 0;
  int64_t paused_ns_ = 0;  // The end of the last pause of the caller.
  std::map<int64_t, FileTraffic> traffic_;  // By rank.
};

// "rank 1 hangs: no progress for 30 s (--hang_timeout)".
std::string HungText(std::span<const LivePlace> places,
                     std::span<const int64_t> hung,
                     const HangDetector& detector);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_WATCH_HANG_H_
