// ByteChannel: a stream of bytes to another process that never blocks: a plain
// socket, or TLS over one.
#ifndef TESSERA_COLLECTIVES_CHANNEL_BYTE_CHANNEL_H_
#define TESSERA_COLLECTIVES_CHANNEL_BYTE_CHANNEL_H_

#include <cstddef>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::collectives::bootstrap {

// Why a call did not go on: what the socket must be ready for.
enum class Want { kNothing, kRead, kWrite };

struct Progress {
  size_t bytes = 0;            // Moved by this call; at least 1 where kNothing.
  Want want = Want::kNothing;  // Where not kNothing, no byte was moved.
};

// Errors: Unavailable where the connection is over (closed, reset);
// PermissionDenied where the other end is not who it must be;
// InvalidArgument where it does not speak the protocol. After an error the
// channel is over. One thread at a time.
class ByteChannel {
 public:
  virtual ~ByteChannel() = default;

  virtual int fd() const = 0;

  // One step towards a connection that may be used; kNothing: it is.
  virtual absl::StatusOr<Want> Handshake() = 0;

  // Up to `bytes.size()` bytes (at least 16 KiB), or as many as go out.
  virtual absl::StatusOr<Progress> Read(std::span<char> bytes) = 0;
  virtual absl::StatusOr<Progress> Write(std::string_view bytes) = 0;

  // Ends the stream for the other end too. Does not wait.
  virtual void Close() = 0;
};

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_CHANNEL_BYTE_CHANNEL_H_
