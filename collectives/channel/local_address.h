// LocalAddressTowards: which of this host's addresses another one sees.
//
//   TESSERA_ASSIGN_OR_RETURN(const std::string address,
//                            LocalAddressTowards("node0", deadline));
//   // "10.77.0.2": where the route to node0 begins.
//
// For engines that open sockets of their own, whose peers are where the ranks
// meet. Nothing is sent: the kernel is asked for its route.
#ifndef TESSERA_COLLECTIVES_CHANNEL_LOCAL_ADDRESS_H_
#define TESSERA_COLLECTIVES_CHANNEL_LOCAL_ADDRESS_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "collectives/channel/deadline.h"

namespace tessera::collectives::bootstrap {

// A number, such as "127.0.0.1" or "::1". As ResolveTcp; Unavailable where no
// address of the host has a route.
absl::StatusOr<std::string> LocalAddressTowards(std::string_view host,
                                                const Deadline& deadline);

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_CHANNEL_LOCAL_ADDRESS_H_
