// WorkerPool: threads that run what would block its caller.
//
//   WorkerPool pool(2);
//   Operation op = pool.Run([&] { return tier.Put(key, bytes, info); });
#ifndef TESSERA_OFFLOAD_TIER_WORKER_POOL_H_
#define TESSERA_OFFLOAD_TIER_WORKER_POOL_H_

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "offload/tier/operation.h"

namespace tessera::offload {

// Safe for concurrent use. The destructor runs what is left.
class WorkerPool {
 public:
  // At least one thread.
  explicit WorkerPool(int threads);
  ~WorkerPool();

  // Work begins in the order of the calls. It must not wait for work that was
  // handed in after it.
  Operation Run(std::function<absl::Status()> work);

 private:
  void Loop();

  absl::Mutex mutex_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_WORKER_POOL_H_
