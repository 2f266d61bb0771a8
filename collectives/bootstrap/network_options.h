// NetworkOptions: the address of this host for engines between hosts.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_NETWORK_OPTIONS_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_NETWORK_OPTIONS_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "topology/discovery/launcher_environment.h"

namespace tessera::collectives {

// The address at which other hosts reach this rank, as the options "interface"
// or "hostname" of the engines gloo and auto: the first interface of this host
// among those in GLOO_SOCKET_IFNAME, as in PyTorch, or the local address of the
// route to MASTER_ADDR; none without both variables. FailedPrecondition if the
// host has none of the interfaces; DeadlineExceeded, Unavailable or NotFound if
// MASTER_ADDR cannot be resolved or reached.
absl::StatusOr<std::map<std::string, std::string>> NetworkOptions(
    const topology::EnvironmentLookup& lookup, absl::Duration timeout);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_NETWORK_OPTIONS_H_
