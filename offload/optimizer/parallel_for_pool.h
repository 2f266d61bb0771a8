// ParallelForPool: a few persistent threads for loops with independent passes.
//
//   ParallelForPool pool(4);
//   pool.Run(chunks, [&](int64_t chunk) { ... });
//
// The caller is one of the threads. Each free thread takes the next pass, so
// results must not depend on which thread executes a pass.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_PARALLEL_FOR_POOL_H_
#define TESSERA_OFFLOAD_OPTIMIZER_PARALLEL_FOR_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace tessera::offload {

class ParallelForPool {
 public:
  // Starts `threads` - 1 threads; fewer than 1 counts as 1.
  explicit ParallelForPool(int threads);
  ~ParallelForPool();

  ParallelForPool(const ParallelForPool&) = delete;
  ParallelForPool& operator=(const ParallelForPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls pass(0) ... pass(count - 1), once each, and returns when all have
  // returned. Any thread may call it; calls wait for each other. `pass` must
  // not call Run of the same pool.
  void Run(int64_t count, absl::FunctionRef<void(int64_t)> pass);

 private:
  struct Loop {
    absl::FunctionRef<void(int64_t)> pass;
    int64_t count;
    std::atomic<int64_t> next{0};

    void TakePart();
  };

  void Work();

  absl::Mutex one_loop_;
  absl::Mutex mutex_;
  Loop* loop_ ABSL_GUARDED_BY(mutex_) = nullptr;  // Where there is work.
  int64_t number_ ABSL_GUARDED_BY(mutex_) = 0;    // Of the loop.
  int busy_ ABSL_GUARDED_BY(mutex_) = 0;          // Workers in it.
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> workers_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_PARALLEL_FOR_POOL_H_
