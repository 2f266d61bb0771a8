// ThreadPool: persistent threads for loops with independent passes.
//
//   ThreadPool pool(4);
//   pool.Run(chunks, [&](int64_t chunk) { ... });
//
// The caller is one of the threads. Each free thread takes the next pass, so
// results must not depend on which thread executes a pass.
//
// One pool serves a rank: matrix products, attention, row operations and the
// optimizer step. A loop costs less than a microsecond if the last one ended
// less than 50 microseconds ago: until then threads spin, later they yield, and
// then they sleep, so that idle pools leave the processors to others; waking
// them costs 5 microseconds (thread_pool_benchmark, two threads).
#ifndef TESSERA_BASE_OS_THREAD_POOL_H_
#define TESSERA_BASE_OS_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace tessera {

class ThreadPool {
 public:
  // Returns `pool`, or a new pool of `threads` if it is null, for options that
  // accept either.
  static std::shared_ptr<ThreadPool> OrNew(std::shared_ptr<ThreadPool> pool,
                                           int threads);

  // Starts `threads` - 1 threads; fewer than 1 counts as 1.
  explicit ThreadPool(int threads);

  // The threads of another runtime, which calls member(data) on `threads`
  // threads at once and returns when all have returned: the signature of
  // OpenMP's GOMP_parallel in libgomp. Use it if such a runtime and the pool
  // compute alternately: otherwise the runtime's threads still spin when the
  // pool's threads begin.
  using Team = void (*)(void (*member)(void*), void* data, unsigned threads,
                        unsigned flags);
  // Starts no thread.
  ThreadPool(int threads, Team team);

  ~ThreadPool();

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls pass(0) ... pass(count - 1), once each, and returns when all have
  // returned. At most 2^32 - 1 passes. Any thread may call it; concurrent calls
  // run one after another. `pass` must not call Run of the same pool, nor
  // throw.
  void Run(int64_t count, absl::FunctionRef<void(int64_t)> pass);

 private:
  using Pass = absl::FunctionRef<void(int64_t)>;

  void RunOnTeam(uint32_t count, Pass pass) const;
  // Executes a remaining pass of the current loop; false if there is none.
  bool TakePass();
  void Work();

  absl::Mutex one_loop_;
  // Passes not yet taken. Counts down, so that a thread that arrives late for a
  // loop finds none, whatever the sizes of earlier loops.
  std::atomic<uint32_t> left_ = 0;
  // Valid while passes of the loop are left or running.
  std::atomic<const Pass*> pass_ = nullptr;
  std::atomic<uint32_t> running_ = 0;  // Passes that have not returned.
  std::atomic<uint32_t> loops_ = 0;    // Threads sleep until it changes.
  std::atomic<bool> stop_ = false;
  const int threads_;
  const Team team_ = nullptr;
  const bool may_spin_;
  std::vector<std::thread> workers_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_OS_THREAD_POOL_H_
