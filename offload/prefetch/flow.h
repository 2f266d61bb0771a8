// The transfers in one direction (Flow), and the search for the number of
// transfers to keep in flight (QueueDepth).
#ifndef TESSERA_OFFLOAD_PREFETCH_FLOW_H_
#define TESSERA_OFFLOAD_PREFETCH_FLOW_H_

#include <cstdint>

namespace tessera::offload {

// Finds the number of transfers to keep in flight by measurement.
//
//   QueueDepth depth(/*most=*/32);
//   while (...) {
//     // keep depth.value() transfers in flight for a while, then
//     depth.Record(bytes, busy_ns);
//   }
//
// It tries one transfer more: if the throughput rises by at least 3 %, it keeps
// the depth and tries the next one, otherwise it reverts. It also tries one
// transfer less, and keeps that depth if the throughput falls by less than 1.5
// %, since a shorter queue delays urgent blocks less. Between trials it pauses,
// longer after each unsuccessful one (up to 16 windows), but tries again at
// once if the throughput changes by a third. Pure arithmetic. Not safe for
// concurrent use.
class QueueDepth {
 public:
  // Uses depths from 1 to `most` (at least 1); starts at `initial`, clamped to
  // them.
  explicit QueueDepth(int most, int initial = 2);

  int value() const { return depth_; }

  // `bytes` were moved in `busy_ns` with value() transfers in flight. Ignored
  // unless both are positive.
  void Record(int64_t bytes, int64_t busy_ns);

 private:
  enum class Phase { kRest, kUp, kDown };

  void Rest();
  void TryNext();
  void JudgeUp(double rate);
  void JudgeDown(double rate);

  const int most_;
  int depth_;
  Phase phase_ = Phase::kRest;
  bool next_up_ = true;
  double rate_ = 0;  // at the best known depth
  int resting_ = 0;  // windows left
  int rest_ = 1;     // windows of the next rest
};

// The transfers in one direction: the number in flight, their bytes, and the
// target depth.
//
//   Flow loads(/*most=*/16);
//   if (loads.HasRoom()) { loads.Start(now_ns); ... }
//   loads.Finish(now_ns, bytes);
//   loads.bytes() / loads.busy_ns(now_ns);
//
// Passes a window of at least 8 transfers, and at least two per slot of the
// queue, to QueueDepth if the queue was full for at least half of them;
// otherwise the depth was not the limit. Not safe for concurrent use.

class Flow {
 public:
  explicit Flow(int most) : depth_(most) {}

  int depth() const { return depth_.value(); }
  int in_flight() const { return in_flight_; }
  bool HasRoom() const { return in_flight_ < depth_.value(); }

  // Times are from one monotonic clock.
  void Start(int64_t now_ns);
  // One transfer ended and has moved `bytes` (0 if it failed).
  void Finish(int64_t now_ns, int64_t bytes);

  // Since construction: the bytes moved, and the time with at least one
  // transfer in flight.
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
  int64_t since_ns_ = 0;  // when busy_ns_ was last updated
  int64_t busy_ns_ = 0;
  int64_t bytes_ = 0;
  Window window_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PREFETCH_FLOW_H_
