// Backoff: what to do between two looks at something that has not happened yet.
//
//   Backoff backoff(/*may_spin=*/ranks_here <= processors);
//   while (!Look()) {
//     if (backoff.Pause() == Backoff::Stage::kSpinning) continue;
//     ... deadlines, aborts ...
//   }
//
// For libraries that move bytes only when they are asked (MPI): it does not
// sleep before a second has gone by without success, and never for long.
#ifndef TESSERA_COLLECTIVES_ENGINE_BACKOFF_H_
#define TESSERA_COLLECTIVES_ENGINE_BACKOFF_H_

#include <sched.h>

#include <chrono>
#include <cstdint>
#include <thread>

#include "collectives/engine/operation_context.h"

namespace tessera::collectives {

class Backoff {
 public:
  enum class Stage : uint8_t { kSpinning, kYielding, kSleeping };

  // Where waiters may outnumber processors, spinning keeps the awaited from
  // running: they yield from the first look on.
  explicit Backoff(bool may_spin) : spins_(may_spin ? kSpins : 0) {}

  Stage Pause() {
    if (spins_ > 0) {
      --spins_;
      return Stage::kSpinning;
    }
    const int64_t now = MonotonicNanos();
    if (begin_ == 0) begin_ = now;
    if (now - begin_ < kPatience) {
      sched_yield();
      return Stage::kYielding;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    return Stage::kSleeping;
  }

 private:
  static constexpr int kSpins = 2000;
  static constexpr int64_t kPatience = 1'000'000'000;

  int spins_;
  int64_t begin_ = 0;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_BACKOFF_H_
