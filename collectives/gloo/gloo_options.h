// What the gloo engine can be told.
#ifndef TESSERA_COLLECTIVES_GLOO_GLOO_OPTIONS_H_
#define TESSERA_COLLECTIVES_GLOO_GLOO_OPTIONS_H_

#include <string>

#include "absl/time/time.h"

namespace tessera::collectives {

struct GlooOptions {
  // Where this rank listens: an interface ("eth0") or, where that is empty, a
  // host name or address. Loopback serves the ranks of one host and is reached
  // by nobody else; Gloo's connections are neither encrypted nor authenticated.
  std::string interface = "";
  std::string hostname = "127.0.0.1";

  // Tells this world from others that meet at the same store; the same on all
  // ranks.
  std::string name = "world";

  // Every collective begins with an exchange of 32 bytes a rank: calls that do
  // not match are errors at once, which show both sides. Otherwise the ranks
  // wait for each other until the deadline. Messages are always checked: they
  // bring their signature. The same on all ranks.
  bool check_signatures = false;

  // How long the ranks wait for each other when the engine is created.
  absl::Duration timeout = absl::Seconds(30);
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_GLOO_GLOO_OPTIONS_H_
