#include "collectives/bootstrap/join_job.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/in_process_store.h"
#include "collectives/bootstrap/inherited_sockets.h"
#include "collectives/bootstrap/rendezvous.h"
#include "collectives/bootstrap/tls_store.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/job_secret.h"
#include "collectives/channel/socket.h"

namespace tessera::collectives {
namespace {

using topology::EnvironmentLookup;
using topology::LauncherEnvironment;

absl::StatusOr<std::unique_ptr<Store>> OpenAlone() {
  TESSERA_ASSIGN_OR_RETURN(auto stores, MakeInProcessStores(1));
  return std::move(stores.front());
}

// Returns true if `host` is reachable from this host only.
absl::StatusOr<bool> IsLocalHost(const std::string& host, absl::Time deadline) {
  TESSERA_ASSIGN_OR_RETURN(const auto addresses,
                           ResolveTcp(host, 0, Deadline(deadline)));
  return std::all_of(addresses.begin(), addresses.end(),
                     [](const auto& address) { return address.IsLocal(); });
}

absl::StatusOr<bool> IsLocal(const Rendezvous& place, absl::Time deadline) {
  if (place.kind != Rendezvous::Kind::kTcp) return true;
  TESSERA_ASSIGN_OR_RETURN(const bool host, IsLocalHost(place.host, deadline),
                           Annotate(_, "MASTER_ADDR"));
  if (!host || place.bind_address.empty()) return host;
  TESSERA_ASSIGN_OR_RETURN(const bool bound,
                           IsLocalHost(place.bind_address, deadline),
                           Annotate(_, "TESSERA_BIND_ADDRESS"));
  return bound;
}

// True if rank 0's host has ranks of other hosts to wait for, but gives its own
// name a loopback address, as Debian's /etc/hosts does (127.0.1.1). Others
// resolve the name to another address, so rank 0 listens on all.
absl::StatusOr<bool> HidesRankZero(const LauncherEnvironment& environment,
                                   const Rendezvous& place,
                                   absl::Time deadline) {
  const int64_t world = environment.world_size.value();
  if (place.kind != Rendezvous::Kind::kTcp || !place.bind_address.empty() ||
      environment.rank.value() != 0 ||
      environment.local_world_size.value_or(world) == world ||
      !IsOwnHostName(place.host)) {
    return false;
  }
  return IsLocalHost(place.host, deadline);
}

// Adds to `status` which variable to change.
absl::Status ExplainTls(const absl::Status& status, const Rendezvous& place) {
  if (status.ok()) return status;
  if (place.kind == Rendezvous::Kind::kAbstractSocket) {
    return absl::Status(
        status.code(),
        absl::StrCat(status.message(), " (the ranks of job \"", place.job,
                     "\" meet at an abstract socket; TESSERA_JOB_ID names the "
                     "job, TESSERA_JOB_SECRET sets its secret)"));
  }
  std::string_view advice =
      "MASTER_ADDR and TESSERA_MASTER_PORT must be the same on every rank";
  if (absl::IsAlreadyExists(status)) {
    advice = "set TESSERA_MASTER_PORT to a free port on every rank";
  } else if (absl::IsPermissionDenied(status)) {
    advice =
        "check TESSERA_JOB_SECRET, TESSERA_JOB_SECRET_FILE and "
        "TESSERA_JOB_ID on every rank";
  } else if (absl::IsInvalidArgument(status)) {
    advice =
        "check MASTER_ADDR, TESSERA_BIND_ADDRESS (where rank 0 listens) "
        "and TESSERA_MASTER_PORT";
  }
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), " (", place.port_source,
                                   "; ", advice, ")"));
}

absl::StatusOr<std::unique_ptr<Store>> OpenTls(
    const EnvironmentLookup& lookup, const LauncherEnvironment& environment,
    const Rendezvous& place, const JoinOptions& options, absl::Time deadline) {
  TESSERA_ASSIGN_OR_RETURN(const bool is_hidden,
                           HidesRankZero(environment, place, deadline));
  TESSERA_ASSIGN_OR_RETURN(const bool is_local, IsLocal(place, deadline));
  const bool local = is_local && !is_hidden;
  TlsStoreOptions tls;
  tls.rank = environment.rank;
  tls.size = environment.world_size.value();
  TESSERA_ASSIGN_OR_RETURN(tls.secret, FindJobSecret(lookup, local));
  tls.job = place.job;
  tls.host = place.host;
  tls.port = place.port;
  tls.abstract_name = place.abstract_name;
  tls.bind_address = is_hidden ? "0.0.0.0" : place.bind_address;
  tls.on_refusal = options.on_refusal;
  absl::StatusOr<std::unique_ptr<Store>> store = OpenTlsStore(tls, deadline);
  if (store.ok()) return store;
  return ExplainTls(store.status(), place);
}

absl::StatusOr<std::unique_ptr<Store>> OpenStore(
    const EnvironmentLookup& lookup, const LauncherEnvironment& environment,
    const JoinOptions& options, absl::Time deadline) {
  TESSERA_ASSIGN_OR_RETURN(const Rendezvous place,
                           PlanRendezvous(lookup, environment));
  switch (place.kind) {
    case Rendezvous::Kind::kAlone:
      return OpenAlone();
    case Rendezvous::Kind::kInheritedSockets:
      return OpenInheritedStore(place.inherited, environment.rank,
                                environment.world_size.value(), deadline,
                                options.on_refusal);
    default:
      return OpenTls(lookup, environment, place, options, deadline);
  }
}

}  // namespace

absl::StatusOr<Job> JoinJob(const EnvironmentLookup& lookup,
                            const JoinOptions& options) {
  const absl::Time deadline = absl::Now() + options.timeout;
  Job job;
  TESSERA_ASSIGN_OR_RETURN(job.environment,
                           topology::ReadLauncherEnvironment(lookup));
  job.rank = job.environment.rank;
  job.world_size = job.environment.world_size;
  TESSERA_ASSIGN_OR_RETURN(
      job.store, OpenStore(lookup, job.environment, options, deadline));
  TESSERA_RETURN_IF_ERROR(Barrier(*job.store, "tessera/join", deadline),
                          Annotate(_, "the job did not form"));
  return job;
}

EnvironmentLookup ProcessEnvironment() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

}  // namespace tessera::collectives
