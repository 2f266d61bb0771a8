// A job's store over TLS: rank 0 serves it, the others connect.
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
// see channel/tls_channel.h) before either says anything else. A stranger is
// closed, counted and reported, and disturbs nobody.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_TLS_STORE_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_TLS_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/served_store.h"
#include "collectives/bootstrap/store.h"
#include "topology/rank.h"

namespace tessera::collectives {

struct TlsStoreOptions {
  Rank rank;
  int64_t size = 1;
  // 16 to 4096 bytes that nobody else knows.
  std::string secret;
  // Tells this job from others with the same secret; travels in the clear. 1 to
  // 128 bytes.
  std::string job = "job";

  // Where rank 0 is: a name or number and a port; or, where it is not empty, a
  // name in the abstract unix namespace, on which both sides also check that
  // the other is of the same user.
  std::string host = "127.0.0.1";
  int port = 0;
  std::string abstract_name;

  // Where rank 0 listens, if not at `host`: "0.0.0.0" is every interface. With
  // the default it binds to loopback, and other hosts cannot reach it.
  std::string bind_address;

  // Rank 0: one line for each refused stranger, ten at once, then one a second.
  // Called by the server's thread, which waits for it.
  std::function<void(std::string line)> on_refusal;
  // Rank 0: how long one may take to prove itself, and how many may be at it.
  absl::Duration greeting_timeout = absl::Seconds(10);
  int max_greeting = 64;
};

// Rank 0's. AlreadyExists where somebody else listens there, InvalidArgument
// where an option is wrong or this host has no such address. Port 0: any that
// is free. `deadline` bounds the resolver's time.
absl::StatusOr<std::unique_ptr<ServedStore>> ServeTlsStore(
    const TlsStoreOptions& options, absl::Time deadline);

// Another rank's. Tries again until the deadline while nobody listens there
// (DeadlineExceeded). At once: PermissionDenied where rank 0 has another secret
// or job; InvalidArgument where what listens there is no store, or rank 0
// another size; AlreadyExists where this rank has come already.
absl::StatusOr<std::unique_ptr<Store>> ConnectTlsStore(
    const TlsStoreOptions& options, absl::Time deadline);

// One or the other, by the rank.
absl::StatusOr<std::unique_ptr<Store>> OpenTlsStore(
    const TlsStoreOptions& options, absl::Time deadline);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_TLS_STORE_H_
