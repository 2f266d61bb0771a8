// MessageChannel: one end of the messages to or from one other rank on one
// lane.
#ifndef TESSERA_COLLECTIVES_GLOO_GLOO_TRANSPORT_H_
#define TESSERA_COLLECTIVES_GLOO_GLOO_TRANSPORT_H_

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/engine/library_engine.h"
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

// GlooTransport: messages through Gloo's unbound buffers.
//
// A message is a frame with its header and, up to 4 KiB, its bytes; longer
// payloads follow on a slot that names their size, so that a payload can only
// meet a buffer that it fits (Gloo ends the process where it does not). Both
// are given to Gloo when the message is started and move on Gloo's thread.
//
// Gloo can wait, but not be asked: who waits in Wait waits in Gloo, and the
// first Test of a channel end starts a thread that waits for its messages.

class GlooTransport : public Transport {
 public:
  explicit GlooTransport(std::shared_ptr<GlooGroup> group);
  // Breaks the group where messages are still under way.
  ~GlooTransport() override;

  Rank rank() const override { return group_->rank(); }
  int64_t size() const override { return group_->size(); }
  absl::StatusOr<Request> StartSend(Rank to, Lane lane,
                                    const Signature& signature,
                                    std::span<const std::byte> bytes) override;
  absl::StatusOr<Request> StartReceive(Rank from, Lane lane,
                                       const Signature& expected,
                                       std::span<std::byte> bytes) override;
  absl::StatusOr<bool> Test(const Request& request) override;
  absl::Status Wait(std::span<const Request> requests,
                    OperationContext& context) override;

  // Ends the waits for messages to itself; Gloo's end with the group.
  void Abort(const absl::Status& reason);

 private:
  absl::Status CheckStart(Rank peer) const;
  MessageChannel& ChannelOf(Rank peer, Lane lane, Direction direction);
  MessageChannel& ChannelOf(const Request& request) {
    return ChannelOf(request.peer, request.lane, request.direction);
  }
  SelfMessages& SelfOn(Lane lane) { return self_[static_cast<size_t>(lane)]; }

  const std::shared_ptr<GlooGroup> group_;
  std::array<SelfMessages, kLaneCount> self_;
  std::mutex channels_mutex_;
  std::vector<std::unique_ptr<MessageChannel>> channels_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_GLOO_GLOO_TRANSPORT_H_
