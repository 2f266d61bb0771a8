// GlooTransport: the Transport over Gloo's unbound buffers.
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

// The messages to or from one peer on one lane. They complete in order.
// Thread-safe, except that only one thread at a time may call Start.
class MessageChannel {
 public:
  MessageChannel(GlooGroup& group, Rank peer, Lane lane, Direction direction)
      : group_(group), peer_(peer), lane_(lane), direction_(direction) {}
  // Requires that no message is in flight, or that the group is broken.
  ~MessageChannel();

  // Starts a message and returns its number. Only receives write to `data`.
  absl::StatusOr<uint64_t> Start(const Signature& signature, std::byte* data,
                                 size_t bytes);
  // Returns true if message `number` is complete. Does not wait.
  absl::StatusOr<bool> Test(uint64_t number);
  // Waits until message `number` is complete or the context's deadline.
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
  uint64_t tested_ = 0;  // The last message passed to Test.
  bool driven_ = false;  // A thread waits for the oldest message.
  bool closing_ = false;
  absl::Status status_;
  std::thread worker_;  // Waits for messages passed to Test.
};

// The Transport of the gloo engine.
//
// A message is a frame with a header and up to 4 KiB of payload. Longer
// payloads follow with a tag that contains their size, so that a payload never
// meets a buffer of another size (which would make Gloo terminate the process).
// Both parts are passed to Gloo at the start and progress on Gloo's thread.
//
// Gloo supports waiting but not polling: Wait waits in Gloo, and the first Test
// on a channel end starts a thread that waits for its messages.
class GlooTransport : public Transport {
 public:
  explicit GlooTransport(std::shared_ptr<GlooGroup> group);
  // Breaks the group if messages are still in flight.
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
  bool ProgressesAlone() const override { return true; }  // On Gloo's thread.

  // Ends waits for messages to this rank itself; other waits end with the
  // group.
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
