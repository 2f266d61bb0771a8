// The environment variables of the ranks of a job: torchrun's and Tessera's.
//
//   JobVariables job = {.np = 4, .master_addr = "127.0.0.1", ...};
//   for (int64_t local = 0; local < 4; ++local) {
//     std::vector<std::string> environment =
//         RankEnvironment(caller, job, local, sockets[local].value);
//   }
//
// Always set, even inside the job of an outer launcher:
//
//   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE
//   ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT
//
// Set unless the caller has set them: OMP_NUM_THREADS=1 and the secret of the
// job. Removed: TORCHELASTIC_* (from an outer torchrun) and, unless this rank
// has such sockets, TESSERA_INHERITED_SOCKETS and TESSERA_LATER_SOCKETS. The
// variables of mpirun and srun are kept; Tessera prefers torchrun's.
//
// Source: "Environment Variables" of torchrun's manual.
#ifndef TESSERA_TOOLS_LAUNCH_ENVIRONMENT_H_
#define TESSERA_TOOLS_LAUNCH_ENVIRONMENT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::tools {

inline constexpr std::string_view kJobSecret = "TESSERA_JOB_SECRET";
inline constexpr std::string_view kJobSecretFile = "TESSERA_JOB_SECRET_FILE";

// The values that all ranks of a node share.
struct JobVariables {
  int64_t np = 1;  // Ranks of each node.
  int64_t nnodes = 1;
  int64_t node_rank = 0;
  std::string master_addr = {};
  int64_t master_port = 0;
  std::string secret = {};  // Empty keeps the caller's.

  int64_t world_size() const { return np * nnodes; }
  int64_t first_rank() const { return np * node_rank; }
};

// The value of the first variable of that name among "NAME=value" strings.
std::optional<std::string_view> FindVariable(
    std::span<const std::string> environment, std::string_view name);

// Generates the secret for JobVariables, 64 hexadecimal digits; returns "" if
// the caller's environment already provides one. InvalidArgument if it provides
// none and there are several nodes, because all nodes need the same secret.
absl::StatusOr<std::string> MakeSecret(std::span<const std::string> caller,
                                       int64_t nnodes);

// Derives the environment of rank `local_rank` of this node from the caller's.
// `sockets` and `later` are the values of TESSERA_INHERITED_SOCKETS and
// TESSERA_LATER_SOCKETS; empty values leave them unset.
std::vector<std::string> RankEnvironment(std::span<const std::string> caller,
                                         const JobVariables& job,
                                         int64_t local_rank,
                                         std::string_view sockets,
                                         std::string_view later = "");

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_ENVIRONMENT_H_
