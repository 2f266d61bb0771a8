// Sockets that connect rank 0 with every other rank of a host before any of
// them runs, so that they find each other without a port.
#ifndef TESSERA_TOOLS_LAUNCH_SOCKET_STAR_H_
#define TESSERA_TOOLS_LAUNCH_SOCKET_STAR_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"

namespace tessera::tools {

// For each of `ranks` ranks (at least one) its connected unix stream sockets,
// closed on exec and above 2: rank 0's to ranks 1, 2, ... in that order, and
// every other's one to rank 0. ResourceExhausted where the process may not have
// as many descriptors.
absl::StatusOr<std::vector<std::vector<UniqueFd>>> MakeSocketStar(size_t ranks);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_SOCKET_STAR_H_
