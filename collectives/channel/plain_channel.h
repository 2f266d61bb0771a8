// PlainChannel: a connected socket as it is. For sockets whose possession is
// the authentication.
#ifndef TESSERA_COLLECTIVES_CHANNEL_PLAIN_CHANNEL_H_
#define TESSERA_COLLECTIVES_CHANNEL_PLAIN_CHANNEL_H_

#include <span>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "collectives/channel/byte_channel.h"

namespace tessera::collectives::bootstrap {

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

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_CHANNEL_PLAIN_CHANNEL_H_
