// One descriptor over a connected unix socket, with a token beside it.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_SEND_FD_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_SEND_FD_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "collectives/channel/deadline.h"

namespace tessera::collectives::bootstrap {

// Sends `fd` with `token`, of 1 to 64 bytes. The receiver has a descriptor of
// its own, even where the sender closes at once.
absl::Status SendFd(const UniqueFd& socket, const UniqueFd& fd,
                    std::string_view token, const Deadline& deadline);

// Receives one descriptor, closed on exec, that comes with `token`.
// PermissionDenied where another token, no descriptor or more than one comes:
// then all of them are closed. Unavailable where the other end closed,
// DeadlineExceeded at the deadline.
absl::StatusOr<UniqueFd> ReceiveFd(const UniqueFd& socket,
                                   std::string_view token,
                                   const Deadline& deadline);

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_SEND_FD_H_
