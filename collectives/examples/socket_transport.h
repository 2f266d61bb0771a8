// SocketTransport: messages as bytes on connections: a header, then the
// payload.
//
// Part of the example of a custom engine (engine.cc); the transport is the only
// part that an engine needs.
#ifndef TESSERA_COLLECTIVES_EXAMPLES_SOCKET_TRANSPORT_H_
#define TESSERA_COLLECTIVES_EXAMPLES_SOCKET_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/engine/peer_report.h"
#include "collectives/engine/transport.h"
#include "collectives/examples/links.h"

namespace tessera::collectives::example {

class SocketTransport : public Transport {
 public:
  explicit SocketTransport(Links links);

  Rank rank() const override { return links_.rank(); }
  int64_t size() const override { return links_.size(); }
  absl::StatusOr<Request> StartSend(Rank to, Lane lane,
                                    const Signature& signature,
                                    std::span<const std::byte> bytes) override;
  absl::StatusOr<Request> StartReceive(Rank from, Lane lane,
                                       const Signature& expected,
                                       std::span<std::byte> bytes) override;
  absl::StatusOr<bool> Test(const Request& request) override;
  absl::Status Wait(std::span<const Request> requests,
                    OperationContext& context) override;

  // Makes all current and later calls fail and closes the connections, so that
  // the other ranks detect it.
  void Abort(const absl::Status& reason);

  std::vector<PeerReport> Peers() const;

 private:
  struct Header {
    Signature signature;
    int64_t bytes = 0;
  };
  struct Message {
    Header header;      // Sent or expected header.
    Header arrived;     // Received header.
    std::byte* data;    // Not written by sends.
    int64_t moved = 0;  // Bytes of header and payload.
  };
  // One direction of a connection, or messages to this rank itself.
  struct Channel {
    Rank peer;
    Lane lane = Lane::kCollective;
    Direction direction = Direction::kSend;
    std::deque<Message> pending;
    uint64_t started = 0;
    uint64_t completed = 0;
  };

  Channel& ChannelOf(Rank peer, Lane lane, Direction direction);
  absl::StatusOr<Request> Start(Channel& channel, const Signature& signature,
                                std::byte* data, size_t bytes);
  // Makes progress on all channels.
  absl::Status Advance();
  absl::Status AdvanceChannel(Channel& channel);
  absl::Status AdvanceSelf(Lane lane);
  // Returns the number of bytes moved; 0 if the connection is not ready.
  absl::StatusOr<int64_t> Move(Channel& channel, Message& message);
  absl::Status CheckArrived(const Channel& channel, const Message& message);
  void AwaitEvent(int64_t deadline);
  absl::Status Missing(std::span<const Request> requests,
                       const OperationContext& context);

  const Links links_;
  std::mutex mutex_;
  std::vector<Channel> channels_;
  absl::Status status_;
};

}  // namespace tessera::collectives::example

#endif  // TESSERA_COLLECTIVES_EXAMPLES_SOCKET_TRANSPORT_H_
