// A TCP port of loopback that nobody listens at now, below those that the
// system gives out by itself, so that no other test is given it.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_FREE_PORT_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_FREE_PORT_H_

#include <random>

#include "absl/time/time.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/socket.h"
#include "collectives/channel/socket_address.h"

namespace tessera::collectives {

inline int FreePort() {
  std::random_device random;
  while (true) {
    const int port = 10000 + static_cast<int>(random() % 10000);
    const auto addresses = bootstrap::ResolveTcp(
        "127.0.0.1", port, bootstrap::Deadline::After(absl::Seconds(5)));
    if (bootstrap::Listen(addresses->front()).ok()) return port;
  }
}

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_FREE_PORT_H_
