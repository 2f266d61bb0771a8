// Flow: transfers of one direction: how many are in flight, what they move and
// how many there should be.
//
//   Flow loads(/*most=*/16);
//   if (loads.HasRoom()) { loads.Start(now_ns); ... }
//   loads.Finish(now_ns, bytes);
//   loads.bytes() / loads.busy_ns(now_ns);
//
// A window of at least 8 transfers, and of two for each place in the queue, is
// handed to QueueDepth where the queue was full at half of them or more: else
// it was not the depth that limited them. Not safe for concurrent use.
#ifndef TESSERA_OFFLOAD_PREFETCH_FLOW_H_
#define TESSERA_OFFLOAD_PREFETCH_FLOW_H_

#include <cstdint>

#include "offload/prefetch/queue_depth.h"

namespace tessera::offload {

class Flow {
 public:
  explicit Flow(int most) : depth_(most) {}

  int depth() const { return depth_.value(); }
  int in_flight() const { return in_flight_; }
  bool HasRoom() const { return in_flight_ < depth_.value(); }

  // Times are of one clock that never goes back.
  void Start(int64_t now_ns);
  // One of them is over and has moved `bytes` (0 for one that failed).
  void Finish(int64_t now_ns, int64_t bytes);

  // Since construction: bytes, and time with at least one in flight.
  int64_t bytes() const { return bytes_; }
  int64_t busy_ns(int64_t now_ns) const {
    return busy_ns_ + (in_flight_ > 0 ? now_ns - since_ns_ : 0);
  }

 private:
  struct Window {
    int64_t bytes = 0;
    int64_t busy_ns_before = 0;
    int count = 0;
    int full = 0;
  };

  void CloseWindow(int64_t now_ns);

  QueueDepth depth_;
  int in_flight_ = 0;
  int64_t since_ns_ = 0;  // when busy_ns_ was brought up to date
  int64_t busy_ns_ = 0;
  int64_t bytes_ = 0;
  Window window_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PREFETCH_FLOW_H_
