// StoreServer: serves a StoreTable to the ranks of other processes, from one
// thread of its own that never blocks on any of them.
//
// Whoever connects has `greeting_timeout` to prove itself (the channel's
// handshake) and say which rank it is; at most `max_greeting` may be at that at
// a time, others wait in the kernel's queue, and the one at it for longest
// gives way after a second. Who fails is closed and reported. A rank that
// closes or breaks its connection has left or is lost, and waits for it end.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_STORE_SERVER_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_STORE_SERVER_H_

#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "collectives/bootstrap/store_table.h"
#include "collectives/channel/byte_channel.h"

namespace tessera::collectives::bootstrap {

struct ServerOptions {
  absl::Duration greeting_timeout = absl::Seconds(10);
  int max_greeting = 64;
  // How long Stop waits for values that ranks have yet to read.
  absl::Duration linger = absl::Seconds(3);
  // One line for each that was refused; called by the server's thread.
  std::function<void(std::string)> on_refusal;
};

// Makes a channel of an accepted socket, or refuses it.
using ChannelMaker =
    std::function<absl::StatusOr<std::unique_ptr<ByteChannel>>(UniqueFd)>;

class StoreServer {
 public:
  // Serves those who connect to `listener`, through `make_channel`.
  static absl::StatusOr<std::unique_ptr<StoreServer>> Listen(
      std::shared_ptr<StoreTable> table, ServerOptions options,
      UniqueFd listener, ChannelMaker make_channel);

  // Serves ranks 1, 2, ... over these channels. They may greet at any time.
  static absl::StatusOr<std::unique_ptr<StoreServer>> Adopt(
      std::shared_ptr<StoreTable> table, ServerOptions options,
      std::vector<std::unique_ptr<ByteChannel>> channels);

  // Lingers, takes leave of every rank and ends the thread.
  ~StoreServer();

  // How many were refused.
  int64_t refusals() const;

 private:
  class Loop;
  explicit StoreServer(std::shared_ptr<Loop> loop);

  const std::shared_ptr<Loop> loop_;
  const pid_t pid_ = getpid();
  std::thread thread_;
};

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_STORE_SERVER_H_
