// MessageChannel: one end of the messages to or from one other rank on one
// lane.
#ifndef TESSERA_COLLECTIVES_GLOO_MESSAGE_CHANNEL_H_
#define TESSERA_COLLECTIVES_GLOO_MESSAGE_CHANNEL_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/engine/message_header.h"
#include "collectives/engine/transport.h"
#include "collectives/gloo/gloo_group.h"

namespace tessera::collectives {

// Thread-safe, but for Start, which one thread at a time calls. Messages
// complete in their order.
class MessageChannel {
 public:
  MessageChannel(GlooGroup& group, Rank peer, Lane lane, Direction direction)
      : group_(group), peer_(peer), lane_(lane), direction_(direction) {}
  // Nothing is under way, or the group is broken.
  ~MessageChannel();

  // The message's number. A receive writes to `data`, a send does not.
  absl::StatusOr<uint64_t> Start(const Signature& signature, std::byte* data,
                                 size_t bytes);
  // True where message `number` is complete. Never waits.
  absl::StatusOr<bool> Test(uint64_t number);
  // Waits for it until the context's deadline.
  absl::Status Wait(uint64_t number, const OperationContext& context);

  bool Idle();

 private:
  struct Message;

  absl::Status Post(Message& message);
  absl::Status Await(Message& message, int64_t deadline);
  absl::Status DriveFront(std::unique_lock<std::mutex>& lock, int64_t deadline,
                          const OperationContext* context);
  void Work();

  GlooGroup& group_;
  const Rank peer_;
  const Lane lane_;
  const Direction direction_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Message>> pending_;  // Oldest first.
  uint64_t started_ = 0;
  uint64_t completed_ = 0;
  uint64_t tested_ = 0;  // The last message that somebody asked about.
  bool driven_ = false;  // A thread waits for the oldest one.
  bool closing_ = false;
  absl::Status status_;
  std::thread worker_;  // Waits for what is asked about.
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_GLOO_MESSAGE_CHANNEL_H_
