// Connection: messages over a ByteChannel, as far as they go without waiting.
//
//   pollfd one = {connection.fd(), connection.events(), 0};
//   poll(&one, 1, -1);
//   std::vector<Message> in;
//   TESSERA_RETURN_IF_ERROR(connection.Advance(&in));
//
// One thread at a time.
#ifndef TESSERA_COLLECTIVES_CHANNEL_CONNECTION_H_
#define TESSERA_COLLECTIVES_CHANNEL_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "collectives/channel/byte_channel.h"
#include "collectives/channel/message.h"

namespace tessera::collectives::bootstrap {

class Connection {
 public:
  explicit Connection(std::unique_ptr<ByteChannel> channel)
      : channel_(std::move(channel)) {}
  Connection(Connection&&) = default;
  Connection& operator=(Connection&&) = default;

  int fd() const { return channel_->fd(); }
  // What poll(2) must wait for.
  int16_t events() const;

  // Goes on with the handshake, sends what is queued, and appends the messages
  // that have come to `in`: those of at most 256 KiB, so that nobody starves.
  // Errors as ByteChannel's, after which the connection is over; what came
  // before one is in `in`.
  absl::Status Advance(std::vector<Message>* in);

  // To be sent by Advance. A message that CheckMessage accepts.
  void Queue(const Message& message) { AppendMessage(message, &out_); }

  bool handshaken() const { return handshaken_; }
  size_t queued_bytes() const { return out_.size() - sent_; }

  // Ends it for the other end too.
  void Close() { channel_->Close(); }

 private:
  absl::Status Shake();
  absl::Status Send();
  absl::Status Receive(std::vector<Message>* in);
  absl::Status Cut(std::vector<Message>* in);

  std::unique_ptr<ByteChannel> channel_;
  bool handshaken_ = false;
  Want want_ = Want::kRead;  // Of the handshake, then of the last read.
  Want write_want_ = Want::kWrite;
  MessageReader reader_;
  std::string out_;
  size_t sent_ = 0;  // Bytes of out_ that have gone out.
};

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_CHANNEL_CONNECTION_H_
