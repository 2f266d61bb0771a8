#include "collectives/bootstrap/rendezvous.h"

#include <unistd.h>

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/fnv1a.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/inherited_sockets.h"

namespace tessera::collectives {
namespace {

using topology::EnvironmentLookup;
using topology::Launcher;
using topology::LauncherEnvironment;

constexpr size_t kMaxJobName = 80;
constexpr int kFirstPort = 20000;
constexpr int kLastPort = 32767;

std::string Show(std::string_view name, std::string_view value) {
  return absl::StrCat(name, "=\"", absl::CHexEscape(value.substr(0, 60)), "\"");
}

absl::StatusOr<int> ParsePort(std::string_view name, std::string_view text) {
  int port = 0;
  if (absl::SimpleAtoi(text, &port) && absl::StrCat(port) == text &&
      port >= 1 && port <= 65535) {
    return port;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(Show(name, text), " is not a port; use 1 to 65535"));
}

// The first of `names` that is set and not empty.
std::optional<std::string> FirstSet(
    const EnvironmentLookup& lookup,
    std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    std::optional<std::string> value = lookup(name);
    if (value && !value->empty()) return value;
  }
  return std::nullopt;
}

// The launcher's name of the job, if it is unique.
std::string LaunchersName(const EnvironmentLookup& lookup, Launcher launcher) {
  const auto value = [&](std::string_view name) {
    return lookup(name).value_or("");
  };
  switch (launcher) {
    case Launcher::kOpenMpi:
      return FirstSet(lookup, {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"})
          .value_or("");
    case Launcher::kSlurm:
      return value("SLURM_JOB_ID").empty()
                 ? ""
                 : absl::StrCat(value("SLURM_JOB_ID"), ".",
                                value("SLURM_STEP_ID"));
    case Launcher::kTorchrun: {
      const std::string id = value("TORCHELASTIC_RUN_ID");
      // torchrun uses "none" if no id was given.
      return id.empty() || id == "none"
                 ? ""
                 : absl::StrCat(id, "/", value("TORCHELASTIC_RESTART_COUNT"));
    }
    case Launcher::kMpich:
      break;
  }
  return "";
}

// Empty if no variable names the job.
absl::StatusOr<std::string> JobName(const EnvironmentLookup& lookup,
                                    Launcher launcher) {
  const std::optional<std::string> set = lookup("TESSERA_JOB_ID");
  if (!set) {
    const std::string name = LaunchersName(lookup, launcher);
    if (name.size() <= kMaxJobName) return name;
    return absl::StrCat("#", absl::Hex(Fnv1a(name)));
  }
  bool plain = !set->empty() && set->size() <= kMaxJobName;
  for (const char c : *set) plain = plain && absl::ascii_isgraph(c);
  if (plain) return *set;
  return absl::InvalidArgumentError(absl::StrCat(
      Show("TESSERA_JOB_ID", *set), " is not a valid name; use 1 to ",
      kMaxJobName, " visible characters without spaces"));
}

absl::Status FindPort(const EnvironmentLookup& lookup, Launcher launcher,
                      Rendezvous& result) {
  const std::string_view own = "TESSERA_MASTER_PORT", shared = "MASTER_PORT";
  const std::optional<std::string> set = lookup(own);
  const std::string_view name = set ? own : shared;
  const std::optional<std::string> text = set ? set : lookup(shared);
  if (!text) {
    return absl::InvalidArgumentError(absl::StrCat(
        "MASTER_ADDR is set, but neither MASTER_PORT nor TESSERA_MASTER_PORT; "
        "set one to the same free port on every rank"));
  }
  TESSERA_ASSIGN_OR_RETURN(result.port, ParsePort(name, *text));
  result.port_source = absl::StrCat(name, "=", result.port);
  const bool agent_has_it =
      !set && launcher == Launcher::kTorchrun &&
      absl::AsciiStrToLower(
          lookup("TORCHELASTIC_USE_AGENT_STORE").value_or("")) == "true";
  if (!agent_has_it) return absl::OkStatus();
  result.port =
      AgentStorePort(result.port, lookup("TORCHELASTIC_RUN_ID").value_or(""),
                     lookup("TORCHELASTIC_RESTART_COUNT").value_or(""));
  absl::StrAppend(&result.port_source,
                  ", at which torchrun's agent listens itself, gives port ",
                  result.port);
  return absl::OkStatus();
}

absl::StatusOr<Rendezvous> PlanTcp(const EnvironmentLookup& lookup,
                                   Launcher launcher, std::string host) {
  Rendezvous result;
  result.kind = Rendezvous::Kind::kTcp;
  if (host.empty()) {
    return absl::InvalidArgumentError(
        "MASTER_ADDR is empty; set it to the name or address of rank 0's host "
        "on every rank");
  }
  result.host = std::move(host);
  TESSERA_RETURN_IF_ERROR(FindPort(lookup, launcher, result));
  result.bind_address = lookup("TESSERA_BIND_ADDRESS").value_or("");
  TESSERA_ASSIGN_OR_RETURN(result.job, JobName(lookup, launcher));
  if (result.job.empty()) result.job = "job";
  return result;
}

absl::Status NowhereError(const LauncherEnvironment& environment) {
  const bool one_host =
      environment.local_world_size == environment.world_size.value();
  return absl::FailedPreconditionError(absl::StrCat(
      "rank ", environment.rank.value(), " of ", environment.world_size.value(),
      ", started by ", LauncherName(environment.launcher),
      " does not know where the ranks meet: set MASTER_ADDR (rank 0's host) "
      "and "
      "MASTER_PORT (a free port there) to the same on every rank",
      one_host ? ", or TESSERA_JOB_ID to a name that no other job on this host "
                 "has"
               : ", and TESSERA_JOB_SECRET or TESSERA_JOB_SECRET_FILE"));
}

}  // namespace

int AgentStorePort(int master_port, std::string_view run_id,
                   std::string_view restart_count) {
  const uint64_t hash =
      Fnv1a(absl::StrCat(master_port, "/", run_id, "/", restart_count));
  constexpr int kPorts = kLastPort - kFirstPort + 1;
  const int port = kFirstPort + static_cast<int>(hash % kPorts);
  if (port != master_port) return port;
  return port == kLastPort ? kFirstPort : port + 1;
}

absl::StatusOr<Rendezvous> PlanRendezvous(
    const EnvironmentLookup& lookup, const LauncherEnvironment& environment) {
  Rendezvous result;
  if (environment.world_size.value() == 1) return result;
  if (auto inherited = lookup(kInheritedSocketsVariable)) {
    result.kind = Rendezvous::Kind::kInheritedSockets;
    result.inherited = *std::move(inherited);
    return result;
  }
  if (auto host = lookup("MASTER_ADDR")) {
    return PlanTcp(lookup, environment.launcher, *std::move(host));
  }
  if (lookup("MASTER_PORT") || lookup("TESSERA_MASTER_PORT")) {
    return absl::InvalidArgumentError(
        "MASTER_PORT or TESSERA_MASTER_PORT is set, but not MASTER_ADDR; set "
        "it to the name or address of rank 0's host on every rank");
  }
  TESSERA_ASSIGN_OR_RETURN(result.job, JobName(lookup, environment.launcher));
  if (environment.local_world_size != environment.world_size.value() ||
      result.job.empty()) {
    return NowhereError(environment);
  }
  result.kind = Rendezvous::Kind::kAbstractSocket;
  result.abstract_name = absl::StrCat("tessera/", geteuid(), "/", result.job);
  return result;
}

}  // namespace tessera::collectives
