// HKDF with SHA-256: a key out of a secret. RFC 5869.
#ifndef TESSERA_COLLECTIVES_CHANNEL_HKDF_H_
#define TESSERA_COLLECTIVES_CHANNEL_HKDF_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::collectives::bootstrap {

// `bytes` bytes, 1 to 255 * 32. Unimplemented where the build has no OpenSSL.
absl::StatusOr<std::string> HkdfSha256(std::string_view secret,
                                       std::string_view salt,
                                       std::string_view info, size_t bytes);

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_CHANNEL_HKDF_H_
