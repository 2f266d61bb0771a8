// Runs threads that wait for each other through absl::Mutex. With the
// suppressions linked in, no sanitizer reports an error.

#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

class TurnTaking {
 public:
  void Take(int thread, int threads) {
    auto is_turn = [this, thread, threads]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return turn_ % threads == thread;
    };
    absl::MutexLock lock(&mu_, absl::Condition(&is_turn));
    ++turn_;
  }
  int turn() const {
    absl::MutexLock lock(&mu_);
    return turn_;
  }

 private:
  mutable absl::Mutex mu_;
  int turn_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST(TsanSuppressionsTest, ContendedMutexesAreClean) {
  constexpr int kThreads = 4;
  constexpr int kTurns = 500;
  TurnTaking turns;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&turns, t] {
      for (int i = 0; i < kTurns; ++i) turns.Take(t, kThreads);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(turns.turn(), kThreads * kTurns);
}

}  // namespace
}  // namespace tessera
