#include "tools/launch/environment.h"

#include <map>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collectives/bootstrap/inherited_sockets.h"
#include "collectives/channel/random_bytes.h"
#include "topology/discovery/launcher_environment.h"

namespace tessera::tools {
namespace {

constexpr size_t kSecretBytes = 32;

using Variables = std::map<std::string, std::string, std::less<>>;

std::string_view NameOf(std::string_view variable) {
  return variable.substr(0, variable.find('='));
}

bool IsSet(std::span<const std::string> environment, std::string_view name) {
  return !FindVariable(environment, name).value_or("").empty();
}

// Set for every rank.
Variables TorchrunVariables(const JobVariables& job, int64_t local_rank) {
  const std::string rank = absl::StrCat(job.first_rank() + local_rank);
  const std::string world_size = absl::StrCat(job.world_size());
  return {{"RANK", rank},
          {"WORLD_SIZE", world_size},
          {"LOCAL_RANK", absl::StrCat(local_rank)},
          {"LOCAL_WORLD_SIZE", absl::StrCat(job.np)},
          {"GROUP_RANK", absl::StrCat(job.node_rank)},
          {"GROUP_WORLD_SIZE", absl::StrCat(job.nnodes)},
          {"ROLE_NAME", "default"},
          {"ROLE_RANK", rank},
          {"ROLE_WORLD_SIZE", world_size},
          {"MASTER_ADDR", job.master_addr},
          {"MASTER_PORT", absl::StrCat(job.master_port)}};
}

bool IsStale(std::string_view name) {
  return name == collectives::kInheritedSocketsVariable ||
         name == collectives::kLaterSocketsVariable ||
         name == topology::kLauncherVariable ||
         absl::StartsWith(name, "TORCHELASTIC_") ||
         absl::StartsWith(name, "PET_");
}

}  // namespace

std::optional<std::string_view> FindVariable(
    std::span<const std::string> environment, std::string_view name) {
  for (std::string_view variable : environment) {
    if (NameOf(variable) == name && variable.size() > name.size()) {
      return variable.substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

absl::StatusOr<std::string> MakeSecret(std::span<const std::string> caller,
                                       int64_t nnodes) {
  if (IsSet(caller, kJobSecret) || IsSet(caller, kJobSecretFile)) return "";
  if (nnodes > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("all nodes need the same secret: set ", kJobSecret,
                     " (openssl rand -hex 32) or ", kJobSecretFile,
                     " to the same on every node"));
  }
  return collectives::RandomHex(kSecretBytes);
}

std::vector<std::string> RankEnvironment(std::span<const std::string> caller,
                                         const JobVariables& job,
                                         int64_t local_rank,
                                         std::string_view sockets,
                                         std::string_view later) {
  Variables added = TorchrunVariables(job, local_rank);
  if (!IsSet(caller, "OMP_NUM_THREADS")) {
    added.insert_or_assign("OMP_NUM_THREADS", std::string(1, '1'));
  }
  if (!job.secret.empty()) added.emplace(kJobSecret, job.secret);
  if (!sockets.empty()) {
    added.emplace(collectives::kInheritedSocketsVariable, sockets);
  }
  if (!later.empty()) added.emplace(collectives::kLaterSocketsVariable, later);
  std::vector<std::string> environment;
  for (const std::string& variable : caller) {
    const std::string_view name = NameOf(variable);
    if (!IsStale(name) && !added.contains(name)) {
      environment.push_back(variable);
    }
  }
  for (const auto& [name, value] : added) {
    environment.push_back(absl::StrCat(name, "=", value));
  }
  return environment;
}

}  // namespace tessera::tools
