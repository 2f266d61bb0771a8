// Random bytes for names and secrets.
#ifndef TESSERA_COLLECTIVES_CHANNEL_RANDOM_BYTES_H_
#define TESSERA_COLLECTIVES_CHANNEL_RANDOM_BYTES_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace tessera::collectives {

// `bytes` cryptographically random bytes. Unavailable if the system provides
// none.
absl::StatusOr<std::string> RandomBytes(size_t bytes);

// `bytes` random bytes as 2 * `bytes` hexadecimal digits.
absl::StatusOr<std::string> RandomHex(size_t bytes);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_CHANNEL_RANDOM_BYTES_H_
