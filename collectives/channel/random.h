// Random bytes that nobody can guess, from the system's source.
#ifndef TESSERA_COLLECTIVES_CHANNEL_RANDOM_H_
#define TESSERA_COLLECTIVES_CHANNEL_RANDOM_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::collectives::bootstrap {

// `bytes` random bytes. Unavailable where the system gives none.
absl::StatusOr<std::string> RandomBytes(size_t bytes);

// `bytes` random bytes as twice as many hexadecimal digits.
absl::StatusOr<std::string> RandomHex(size_t bytes);

// Whether two secrets are equal, in a time that depends on their sizes only.
bool SecretsEqual(std::string_view a, std::string_view b);

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_CHANNEL_RANDOM_H_
