// Connection, which sends messages over a ByteChannel, and WakeFd, which wakes
// the thread that polls it.
#ifndef TESSERA_COLLECTIVES_CHANNEL_CONNECTION_H_
#define TESSERA_COLLECTIVES_CHANNEL_CONNECTION_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "collectives/channel/byte_channel.h"
#include "collectives/channel/message.h"

namespace tessera::collectives {

// Interrupts another thread's poll(2).
//
//   wake.Wake();  // On any thread.
//
//   // On the thread that polls:
//   pollfd fds[] = {{wake.fd(), POLLIN, 0}, ...};
//   poll(fds, ...);
//   wake.Drain();
class WakeFd {
 public:
  static absl::StatusOr<WakeFd> Create() {
    UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fd.valid())
      return absl::ErrnoToStatus(errno, "cannot make an eventfd");
    return WakeFd(std::move(fd));
  }

  int fd() const { return fd_.get(); }

  void Wake() const {
    const uint64_t one = 1;
    // Fails only if it was woken already.
    [[maybe_unused]] const ssize_t written = write(fd(), &one, sizeof(one));
  }
  void Drain() const {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(fd(), &count, sizeof(count));
  }

 private:
  explicit WakeFd(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// Sends and receives messages over a ByteChannel without blocking.
//
//   pollfd one = {connection.fd(), connection.events(), 0};
//   poll(&one, 1, -1);
//   std::vector<Message> in;
//   TESSERA_RETURN_IF_ERROR(connection.Advance(&in));
//
// Not thread-safe.
class Connection {
 public:
  explicit Connection(std::unique_ptr<ByteChannel> channel)
      : channel_(std::move(channel)) {}
  Connection(Connection&&) = default;
  Connection& operator=(Connection&&) = default;

  int fd() const { return channel_->fd(); }
  // The events for poll(2).
  int16_t events() const;

  // Continues the handshake, sends queued messages, and appends received
  // messages to `in` (at most 256 KiB per call, for fairness). Errors are those
  // of ByteChannel and end the connection; messages received before the error
  // are in `in`.
  absl::Status Advance(std::vector<Message>* in);

  // Queues a message (valid by CheckMessage) for Advance.
  void Queue(const Message& message) { AppendMessage(message, &out_); }

  size_t queued_bytes() const { return out_.size() - sent_; }

  // Closes the connection for both ends.
  void Close() { channel_->Close(); }

 private:
  absl::Status Shake();
  absl::Status Send();
  absl::Status Receive(std::vector<Message>* in);
  absl::Status Cut(std::vector<Message>* in);

  std::unique_ptr<ByteChannel> channel_;
  bool handshaken_ = false;
  Want want_ = Want::kRead;  // Awaited by the handshake or the last read.
  Want write_want_ = Want::kWrite;
  MessageReader reader_;
  std::string out_;
  size_t sent_ = 0;  // Bytes of out_ that were sent.
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_CHANNEL_CONNECTION_H_
