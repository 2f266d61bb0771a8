// Opens a job's store over TLS: rank 0 serves it and the other ranks connect.
//
//   TlsStoreOptions options;
//   options.rank = Rank(3);
//   options.size = 4;
//   options.secret = secret;          // The same on every rank.
//   options.host = "127.0.0.1";
//   options.port = 29500;
//   TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Store> store,
//                            OpenTlsStore(options, deadline));
//
// Both sides prove that they know the secret (TLS 1.3 with a pre-shared key,
// see channel/tls_channel.h) before any other message. Connections that do not
// are closed, counted and reported; they have no other effect.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_TLS_STORE_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_TLS_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/store.h"
#include "collectives/bootstrap/store_server.h"
#include "topology/rank.h"

namespace tessera::collectives {

struct TlsStoreOptions {
  Rank rank;
  int64_t size = 1;
  // The secret, 16 to 4096 bytes.
  std::string secret;
  // The job's name, which distinguishes jobs with the same secret. Sent in
  // clear text. 1 to 128 bytes.
  std::string job = "job";

  // The address of rank 0: host name or IP address and port; or, if
  // abstract_name is not empty, an abstract unix socket, on which both sides
  // also check that the other belongs to the same user.
  std::string host = "127.0.0.1";
  int port = 0;
  std::string abstract_name;

  // The address on which rank 0 listens if not `host`; "0.0.0.0": all
  // interfaces. The default host is loopback, which other hosts cannot reach.
  std::string bind_address;

  // Rank 0: receives one line per rejected connection, at most ten at once and
  // one per second. Called by the server's thread, so it must not block.
  std::function<void(std::string line)> on_refusal;
  // Rank 0: the longest time to authenticate, and the number of connections
  // that may do so at a time.
  absl::Duration greeting_timeout = absl::Seconds(10);
  int max_greeting = 64;
};

// Opens rank 0's store. AlreadyExists if the address is in use, InvalidArgument
// if an option is invalid or this host does not have the address. Port 0 uses
// any free port. `deadline` limits name resolution.
absl::StatusOr<std::unique_ptr<ServedStore>> ServeTlsStore(
    const TlsStoreOptions& options, absl::Time deadline);

// Opens another rank's store. Retries until the deadline (DeadlineExceeded)
// while no process listens there. Fails at once with PermissionDenied if rank 0
// has another secret or job; InvalidArgument if the other end is not a store or
// has another size; AlreadyExists if this rank has already joined.
absl::StatusOr<std::unique_ptr<Store>> ConnectTlsStore(
    const TlsStoreOptions& options, absl::Time deadline);

// Opens the store of options.rank.
absl::StatusOr<std::unique_ptr<Store>> OpenTlsStore(
    const TlsStoreOptions& options, absl::Time deadline);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_TLS_STORE_H_
