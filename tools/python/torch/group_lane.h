// GroupLane: the order of one group's collectives, and of the callbacks of
// their futures.
//
// Synchronous collectives run on the caller's thread if the lane is free.
// Others run in order on the lane's threads: one, and one more for each
// callback that is running.
//
// A callback may start collectives of the same group and wait for them. They
// run on the callback's thread, at the place in the order at which the callback
// would run if the caller had waited when it took the future: after the
// collectives that were launched before, and before those that were launched
// after. So all ranks of a group use the same order, whether a callback was
// added before or after its collective ended. Later collectives therefore wait
// for the callback, unless it waits for one of them (BeforeWait) or computes
// for longer than kPatience.
#ifndef TESSERA_TOOLS_PYTHON_TORCH_GROUP_LANE_H_
#define TESSERA_TOOLS_PYTHON_TORCH_GROUP_LANE_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tessera::torch_backend {

class GroupLane : public std::enable_shared_from_this<GroupLane> {
 public:
  using Clock = std::chrono::steady_clock;

  // The time after which later collectives stop waiting for a callback that
  // does not return. Collectives of the callback do not count.
  static constexpr std::chrono::seconds kPatience{2};

  // The callbacks of one collective, if any.
  struct Callbacks {
    std::function<void()> run;
    // Now() when the future was taken.
    uint64_t taken = 0;
  };
  // A collective; returns the callbacks that run after it.
  using Job = std::function<Callbacks()>;

  // The lane's threads share it.
  static std::shared_ptr<GroupLane> Create();

  GroupLane(const GroupLane&) = delete;
  GroupLane& operator=(const GroupLane&) = delete;

  // The number of jobs launched so far on all lanes of this process.
  static uint64_t Now();

  // True on the thread of a callback of this lane that may run collectives
  // itself.
  bool IsInCallback() const;

  // If the lane is free, holds it for the calling thread until Leave and
  // returns true. In a callback it waits for its turn.
  bool TryEnter();
  void Leave();

  // Runs `job` on a thread of the lane, after all earlier jobs. Returns its
  // launch number.
  uint64_t Push(Job job);

  // Called before this thread waits for the job with this number: if it is in a
  // callback for which the job waits, the job stops waiting.
  void BeforeWait(uint64_t number);

  // Waits until no job is queued or running and no callback runs on another
  // thread. Returns false at the deadline.
  bool AwaitIdle(Clock::time_point deadline);

  // Waits until every job has run and the threads have ended that are not in
  // callbacks. The last call; callbacks may make it.
  void Close();

 private:
  struct Callback;
  using Lock = std::unique_lock<std::mutex>;

  GroupLane() = default;

  // The innermost callback that runs on this thread.
  static Callback*& Current();
  Callback* OwnCallback() const;
  // True if no callback delays a job with this number.
  bool MayRun(uint64_t number);
  bool IsTurnOf(const Callback& callback);
  // Waits for a change, at most until a callback's time is over.
  void AwaitChange(Lock& lock);
  void EnsureThread();
  void RunJobs();
  void RunFront(Lock& lock);
  void RunCallbacks(Lock& lock, Callbacks callbacks, uint64_t number);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<uint64_t, Job>> jobs_;  // By launch number.
  std::vector<Callback*> callbacks_;           // Running.
  bool busy_ = false;                          // A collective is running.
  int free_threads_ = 0;  // Threads that are not in callbacks.
  bool closing_ = false;
};

}  // namespace tessera::torch_backend

#endif  // TESSERA_TOOLS_PYTHON_TORCH_GROUP_LANE_H_
