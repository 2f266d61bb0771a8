// The job secret with which the ranks of a job authenticate each other, and the
// key derivation that it needs.
#ifndef TESSERA_COLLECTIVES_CHANNEL_JOB_SECRET_H_
#define TESSERA_COLLECTIVES_CHANNEL_JOB_SECRET_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "collectives/channel/random_bytes.h"

namespace tessera::collectives {

// HKDF with SHA-256 (RFC 5869): derives a key of 1 to 255 * 32 bytes from a
// secret. Unimplemented if the build has no OpenSSL.
absl::StatusOr<std::string> HkdfSha256(std::string_view secret,
                                       std::string_view salt,
                                       std::string_view info, size_t bytes);

inline constexpr char kJobSecretVariable[] = "TESSERA_JOB_SECRET";
inline constexpr char kJobSecretFileVariable[] = "TESSERA_JOB_SECRET_FILE";

using EnvironmentVariable =
    std::function<std::optional<std::string>(std::string_view name)>;

// Returns the secret of this process's job.
//
//   TESSERA_ASSIGN_OR_RETURN(std::string secret,
//                            FindJobSecret(lookup, /*local_only=*/true));
//
// Searched in this order:
//   TESSERA_JOB_SECRET       the secret itself, 16 to 4096 bytes. Only root
//                            and this user can see a process's environment.
//   TESSERA_JOB_SECRET_FILE  a regular file that contains it, owned by this
//                            user and not accessible to group and others.
//                            Trailing white space is ignored.
//   the user's key file      $XDG_CACHE_HOME/tessera/job_secret (default
//                            ~/.cache), created with random bytes if missing.
//                            Only if all ranks are on this host.
//
// No error message contains a secret.
//
// FailedPrecondition if no secret is set and `local_only` is false;
// InvalidArgument if it is too short or too long; PermissionDenied if a file
// belongs to another user or is accessible to others; NotFound if it is
// missing.
absl::StatusOr<std::string> FindJobSecret(const EnvironmentVariable& lookup,
                                          bool local_only);

// Reads a secret from a file as described above.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path);

// Reads the secret in `directory`/job_secret. Creates the directory and file
// atomically if they are missing, so that concurrent callers get the same
// secret.
absl::StatusOr<std::string> ReadOrMakeSecretFile(const std::string& directory);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_CHANNEL_JOB_SECRET_H_
