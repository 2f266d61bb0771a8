// NetworkOptions: the address of this host for engines between hosts, and
// whether they encrypt.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_NETWORK_OPTIONS_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_NETWORK_OPTIONS_H_

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "topology/discovery/launcher_environment.h"

namespace tessera::collectives {

// TESSERA_ENCRYPT_DATA: 1 if the data between hosts is to be encrypted.
// InvalidArgument if it is neither 0 nor 1.
inline constexpr char kEncryptDataVariable[] = "TESSERA_ENCRYPT_DATA";
absl::StatusOr<bool> EncryptsData(const topology::EnvironmentLookup& lookup);

// Options of the engines gloo and auto. The address at which other hosts reach
// this rank is "interface" or "hostname": the first interface of this host
// among those in GLOO_SOCKET_IFNAME, as in PyTorch, or the local address of the
// route to MASTER_ADDR; none without both variables. "encrypt" is "true" if
// EncryptsData. FailedPrecondition if the host has none of the interfaces;
// DeadlineExceeded, Unavailable or NotFound if MASTER_ADDR cannot be resolved
// or reached.
absl::StatusOr<std::map<std::string, std::string>> NetworkOptions(
    const topology::EnvironmentLookup& lookup, absl::Duration timeout);

// A line for the user of a job on several hosts that names the network on which
// its data can be read, and `remedy`, which encrypts it. Empty if the options
// encrypt.
std::string ClearDataNote(const std::map<std::string, std::string>& options,
                          std::string_view remedy);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_NETWORK_OPTIONS_H_
