// GlooTransport: messages through Gloo's unbound buffers.
//
// A message is a frame with its header and, up to 4 KiB, its bytes; longer
// payloads follow on a slot that names their size, so that a payload can only
// meet a buffer that it fits (Gloo ends the process where it does not). Both
// are given to Gloo when the message is started and move on Gloo's thread.
//
// Gloo can wait, but not be asked: who waits in Wait waits in Gloo, and the
// first Test of a channel end starts a thread that waits for its messages.
#ifndef TESSERA_COLLECTIVES_GLOO_GLOO_TRANSPORT_H_
#define TESSERA_COLLECTIVES_GLOO_GLOO_TRANSPORT_H_

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "collectives/engine/self_messages.h"
#include "collectives/engine/transport.h"
#include "collectives/gloo/gloo_group.h"
#include "collectives/gloo/message_channel.h"

namespace tessera::collectives {

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
