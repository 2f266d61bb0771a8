// The per-job secret that the ranks of a job prove to each other.
//
//   TESSERA_ASSIGN_OR_RETURN(std::string secret,
//                            FindJobSecret(lookup, /*local_only=*/true));
//
// In this order:
//   TESSERA_JOB_SECRET       the secret itself, 16 to 4096 bytes. Only root
//                            and this user can see a process's environment.
//   TESSERA_JOB_SECRET_FILE  a regular file of this user's, closed to group and
//                            others, that holds it. White space at its end does
//                            not count.
//   a file of the user's own $XDG_CACHE_HOME/tessera/job_secret (~/.cache where
//                            that is not set), made with random bytes when it
//                            is first needed. Only where all ranks are on this
//                            host.
//
// No error shows a secret.
#ifndef TESSERA_COLLECTIVES_CHANNEL_JOB_SECRET_H_
#define TESSERA_COLLECTIVES_CHANNEL_JOB_SECRET_H_

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::collectives {

inline constexpr char kJobSecretVariable[] = "TESSERA_JOB_SECRET";
inline constexpr char kJobSecretFileVariable[] = "TESSERA_JOB_SECRET_FILE";

using EnvironmentVariable =
    std::function<std::optional<std::string>(std::string_view name)>;

// The secret. FailedPrecondition where none is set and `local_only` is false;
// InvalidArgument where it is too short or too long; PermissionDenied where a
// file is another user's or open to others; NotFound where it is missing.
absl::StatusOr<std::string> FindJobSecret(const EnvironmentVariable& lookup,
                                          bool local_only);

// Reads a secret from a file, which must be as described above.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path);

// Reads the secret of `directory`/job_secret, making both where they are
// missing: whole or not at all, and the same for all who do so at once.
absl::StatusOr<std::string> ReadOrMakeSecretFile(const std::string& directory);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_CHANNEL_JOB_SECRET_H_
