// QueueDepth: how many transfers to keep in flight, found by measuring.
//
//   QueueDepth depth(/*most=*/32);
//   while (...) {
//     // keep depth.value() transfers in flight for a while, then
//     depth.Record(bytes, busy_ns);
//   }
//
// One more is tried; where the throughput rises by 3 % or more it stays and
// the next is tried, else it is taken back. One less is tried too, and stays
// where the throughput falls by less than 1.5 %: a shorter queue is shorter to
// wait behind for whoever needs a block now. Between trials it rests, longer
// after each that changed nothing (up to 16 windows), and tries again at once
// where the throughput changes by a third. Pure arithmetic.
#ifndef TESSERA_OFFLOAD_PREFETCH_QUEUE_DEPTH_H_
#define TESSERA_OFFLOAD_PREFETCH_QUEUE_DEPTH_H_

#include <cstdint>

namespace tessera::offload {

// Not safe for concurrent use.
class QueueDepth {
 public:
  // Depths from 1 to `most` (at least 1); starts at `initial`, within them.
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
  double rate_ = 0;  // at the depth that is known to be good
  int resting_ = 0;  // windows left
  int rest_ = 1;     // windows of the next rest
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PREFETCH_QUEUE_DEPTH_H_
