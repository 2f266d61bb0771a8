// MessageLane: the point-to-point messages of one communicator.
//
// Messages between two ranks in one direction form a channel and keep their
// order; channels do not wait for one another, so that started sends and
// receives never block each other. A blocking call on an idle channel runs on
// the caller's thread; started messages are carried on by the lane's own
// thread, which exists from the first of them on.
//
// Threads: any. A call on a channel waits while another thread is in a blocking
// call on the same channel.
#ifndef TESSERA_COLLECTIVES_ENGINE_MESSAGE_LANE_H_
#define TESSERA_COLLECTIVES_ENGINE_MESSAGE_LANE_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/transport.h"
#include "collectives/operation/operation.h"
#include "collectives/record/flight_recorder.h"

namespace tessera::collectives {

class MessageLane {
 public:
  // Called once when a started operation is done.
  using Done = std::function<void(absl::Status)>;

  // `engine` has a transport; it and `recorder` outlive the lane. `group` marks
  // the messages.
  MessageLane(Engine& engine, uint32_t group, FlightRecorder& recorder);
  // Returns when every started message is done or has failed.
  ~MessageLane();

  MessageLane(const MessageLane&) = delete;
  MessageLane& operator=(const MessageLane&) = delete;

  // Carries out a valid send, receive or send_receive. `deadline` in
  // MonotonicNanos.
  absl::Status Run(const Operation& operation, int64_t deadline);

  // Starts one. An error: it was not started, and `done` is not called.
  absl::Status Start(const Operation& operation, int64_t deadline, Done done);

  // Every started message fails with `reason` (not OK), also those to come.
  void Fail(const absl::Status& reason);

 private:
  struct Pending;
  struct Channel;
  struct Half;
  class Joint;

  // A send, a receive, or one of each.
  using Halves = absl::InlinedVector<Half, 2>;

  Halves HalvesOf(const Operation& operation);
  Channel& ChannelOf(Rank peer, Direction direction);
  absl::StatusOr<Request> StartOnTransport(Channel& channel, const Half& half,
                                           Signature& signature);
  absl::Status RunHere(std::span<const Half> halves, int64_t deadline);
  absl::Status Wait(const OperationRecord& record,
                    std::span<const Request> requests, int64_t deadline);
  absl::Status StartHalf(const Half& half, int64_t deadline,
                         const std::shared_ptr<Joint>& joint);
  void WakeProgress(Channel& channel);
  void Progress();
  bool ProgressChannel(Channel& channel);
  void FinishFront(Channel& channel, absl::Status status);
  absl::Status Overdue(const Pending& pending) const;
  absl::Status failure() const;

  Engine& engine_;
  Transport& transport_;
  const uint32_t group_;
  FlightRecorder& recorder_;

  std::mutex channels_mutex_;
  std::vector<std::unique_ptr<Channel>> channels_;  // By peer and direction.

  std::atomic<bool> failed_ = false;
  mutable std::mutex failure_mutex_;
  absl::Status failure_;

  std::mutex progress_mutex_;
  std::condition_variable work_arrived_;
  std::vector<Channel*> arrived_;  // Channels that have become active.
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_MESSAGE_LANE_H_
