#include "collectives/channel/random_bytes.h"

#include <sys/random.h>
#include <sys/types.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "base/status_macros.h"

namespace tessera::collectives {

absl::StatusOr<std::string> RandomBytes(size_t bytes) {
  std::string result(bytes, '\0');
  size_t have = 0;
  while (have < bytes) {
    const ssize_t got = getrandom(result.data() + have, bytes - have, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return absl::UnavailableError(
          "the system's random source (getrandom) does not work");
    }
    have += static_cast<size_t>(got);
  }
  return result;
}

absl::StatusOr<std::string> RandomHex(size_t bytes) {
  TESSERA_ASSIGN_OR_RETURN(const std::string raw, RandomBytes(bytes));
  return absl::BytesToHexString(raw);
}

}  // namespace tessera::collectives
