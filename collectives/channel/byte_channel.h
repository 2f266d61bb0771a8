// ByteChannel: a non-blocking byte stream to another process: a plain socket,
// or TLS over one.
#ifndef TESSERA_COLLECTIVES_CHANNEL_BYTE_CHANNEL_H_
#define TESSERA_COLLECTIVES_CHANNEL_BYTE_CHANNEL_H_

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"

namespace tessera::collectives {

// The event that a call must wait for.
enum class Want { kNothing, kRead, kWrite };

struct Progress {
  size_t bytes = 0;  // Bytes moved by this call; at least 1 if kNothing.
  Want want = Want::kNothing;  // If not kNothing, no byte was moved.
};

// Errors: Unavailable if the connection was closed or reset; PermissionDenied
// if the other end fails authentication; InvalidArgument if it does not use the
// protocol. After an error the channel is unusable. Not thread-safe.
class ByteChannel {
 public:
  virtual ~ByteChannel() = default;

  virtual int fd() const = 0;

  // Makes progress on the handshake; kNothing when the channel is ready for
  // use.
  virtual absl::StatusOr<Want> Handshake() = 0;

  // Read up to `bytes.size()` bytes (at least 16 KiB); write as many as
  // possible.
  virtual absl::StatusOr<Progress> Read(std::span<char> bytes) = 0;
  virtual absl::StatusOr<Progress> Write(std::string_view bytes) = 0;

  // Closes the stream for both ends. Does not wait.
  virtual void Close() = 0;
};

// A connected socket without encryption, for sockets that no third process can
// have.
class PlainChannel final : public ByteChannel {
 public:
  explicit PlainChannel(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const override { return socket_.get(); }
  absl::StatusOr<Want> Handshake() override { return Want::kNothing; }
  absl::StatusOr<Progress> Read(std::span<char> bytes) override;
  absl::StatusOr<Progress> Write(std::string_view bytes) override;
  void Close() override;

 private:
  UniqueFd socket_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_CHANNEL_BYTE_CHANNEL_H_
