// CollectiveLane: runs the collectives of one communicator one at a time, in
// the order in which they were given.
//
// A blocking call that finds the lane free runs on the caller's thread; what is
// started runs on the lane's own thread, which exists from the first such job
// on, so that it progresses while the caller computes.
#ifndef TESSERA_COLLECTIVES_ENGINE_COLLECTIVE_LANE_H_
#define TESSERA_COLLECTIVES_ENGINE_COLLECTIVE_LANE_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace tessera::collectives {

class CollectiveLane {
 public:
  CollectiveLane() = default;
  // Returns when every job has run.
  ~CollectiveLane();

  CollectiveLane(const CollectiveLane&) = delete;
  CollectiveLane& operator=(const CollectiveLane&) = delete;

  // True where nothing runs or waits: the caller has the lane until Leave.
  bool TryEnter();
  void Leave();

  // Runs `job` after everything that was given before.
  void Push(std::function<void()> job);

 private:
  void RunJobs();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool busy_ = false;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_COLLECTIVE_LANE_H_
