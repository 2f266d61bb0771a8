#include "collectives/bootstrap/tls_store.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/os/unique_fd.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/store_client.h"
#include "collectives/bootstrap/store_server.h"
#include "collectives/channel/byte_channel.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/socket.h"
#include "collectives/channel/tls_channel.h"

namespace tessera::collectives {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(5);
constexpr absl::Duration kLongestPause = absl::Milliseconds(250);
constexpr int64_t kMaxRanks = int64_t{1} << 18;

absl::Status CheckOptions(const TlsStoreOptions& options) {
  if (options.size < 1 || options.size > kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the job has ", options.size, " ranks; use 1 to ", kMaxRanks));
  }
  if (options.rank < Rank(0) || options.rank.value() >= options.size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", options.rank.value(),
        " is out of range; the job has ranks 0 to ", options.size - 1));
  }
  return absl::OkStatus();
}

std::string PlaceOf(const TlsStoreOptions& options) {
  if (!options.abstract_name.empty()) {
    return absl::StrCat("@", absl::CHexEscape(options.abstract_name));
  }
  return absl::StrCat(absl::CHexEscape(options.host.substr(0, 253)), ":",
                      options.port);
}

absl::StatusOr<std::vector<SocketAddress>> AddressesOf(
    const TlsStoreOptions& options, const std::string& host,
    const Deadline& deadline) {
  if (options.abstract_name.empty()) {
    return ResolveTcp(host, options.port, deadline);
  }
  TESSERA_ASSIGN_OR_RETURN(const SocketAddress address,
                           SocketAddress::Abstract(options.abstract_name));
  return std::vector<SocketAddress>{address};
}

absl::StatusOr<UniqueFd> ListenAt(const TlsStoreOptions& options,
                                  const Deadline& deadline) {
  const std::string& host =
      options.bind_address.empty() ? options.host : options.bind_address;
  TESSERA_ASSIGN_OR_RETURN(const auto addresses,
                           AddressesOf(options, host, deadline));
  absl::StatusOr<UniqueFd> listener = Listen(addresses.front());
  if (absl::IsAlreadyExists(listener.status())) {
    return Annotate(listener.status(),
                    "rank 0 finds its port taken by another program");
  }
  if (listener.ok()) return listener;
  return Annotate(listener.status(),
                  "rank 0 must listen on an address of its own host");
}

// Rank 0 may not listen yet, or its host name may not be known yet.
bool MayTryAgain(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsNotFound(status) ||
         absl::IsDeadlineExceeded(status);
}

absl::StatusOr<std::unique_ptr<Store>> JoinAt(const SocketAddress& address,
                                              const TlsStoreOptions& options,
                                              TlsContext& context,
                                              const Deadline& deadline) {
  TESSERA_ASSIGN_OR_RETURN(UniqueFd socket, Connect(address, deadline));
  if (address.family() == AF_UNIX) {
    TESSERA_RETURN_IF_ERROR(CheckSameUser(socket));
  }
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<ByteChannel> channel,
                           context.Wrap(std::move(socket)));
  return StoreClient::Join(std::move(channel), options.rank, options.size,
                           deadline);
}

// Tries each address of rank 0 once.
absl::StatusOr<std::unique_ptr<Store>> TryToJoin(const TlsStoreOptions& options,
                                                 TlsContext& context,
                                                 const Deadline& deadline) {
  TESSERA_ASSIGN_OR_RETURN(const auto addresses,
                           AddressesOf(options, options.host, deadline));
  absl::Status last;
  for (const SocketAddress& address : addresses) {
    absl::StatusOr<std::unique_ptr<Store>> store =
        JoinAt(address, options, context, deadline);
    if (store.ok() || !MayTryAgain(store.status())) return store;
    last = store.status();
  }
  return last;
}

// Adds to an attempt's error how to fix it.
absl::Status ExplainFatal(const TlsStoreOptions& options,
                          const absl::Status& status) {
  const std::string who = absl::StrCat("rank ", options.rank.value(), " of ",
                                       options.size, " at ", PlaceOf(options));
  if (absl::IsPermissionDenied(status)) {
    return Annotate(
        status,
        absl::StrCat(who,
                     " was rejected: rank 0 has another secret or belongs to "
                     "another job than \"",
                     absl::CHexEscape(options.job),
                     "\"; give every rank the same"));
  }
  if (absl::IsInvalidArgument(status)) {
    return Annotate(status, absl::StrCat(who, " did not find its job's store"));
  }
  return Annotate(status, who);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServedStore>> ServeTlsStore(
    const TlsStoreOptions& options, absl::Time deadline) {
  TESSERA_RETURN_IF_ERROR(CheckOptions(options));
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<TlsContext> context,
                           TlsContext::Create(TlsContext::Role::kServer,
                                              options.job, options.secret));
  TESSERA_ASSIGN_OR_RETURN(UniqueFd listener,
                           ListenAt(options, Deadline(deadline)));
  TESSERA_ASSIGN_OR_RETURN(const SocketAddress address, LocalAddress(listener));
  const bool is_unix = address.family() == AF_UNIX;
  ServerOptions server;
  server.greeting_timeout = options.greeting_timeout;
  server.max_greeting = std::max(options.max_greeting, 1);
  server.on_refusal = options.on_refusal;
  const auto make_channel =
      [context, is_unix](
          UniqueFd socket) -> absl::StatusOr<std::unique_ptr<ByteChannel>> {
    if (is_unix) TESSERA_RETURN_IF_ERROR(CheckSameUser(socket));
    return context->Wrap(std::move(socket));
  };
  return ServeTable(
      options.size, address.port(), [&](std::shared_ptr<StoreTable> table) {
        return StoreServer::Listen(std::move(table), std::move(server),
                                   std::move(listener), make_channel);
      });
}

absl::StatusOr<std::unique_ptr<Store>> ConnectTlsStore(
    const TlsStoreOptions& options, absl::Time deadline) {
  TESSERA_RETURN_IF_ERROR(CheckOptions(options));
  if (options.rank == Rank(0)) {
    return absl::InvalidArgumentError(
        "rank 0 serves the store and does not connect to it");
  }
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<TlsContext> context,
                           TlsContext::Create(TlsContext::Role::kClient,
                                              options.job, options.secret));
  const Deadline until(deadline);
  for (absl::Duration pause = kFirstPause;;
       pause = std::min(pause * 2, kLongestPause)) {
    absl::StatusOr<std::unique_ptr<Store>> store =
        TryToJoin(options, *context, until);
    if (store.ok()) return store;
    if (!MayTryAgain(store.status())) {
      return ExplainFatal(options, store.status());
    }
    if (until.Expired()) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", options.rank.value(), " of ", options.size,
                       " did not reach rank 0 at ", PlaceOf(options),
                       " in time; is rank 0 running? The last attempt: ",
                       store.status().message()));
    }
    absl::SleepFor(std::min(pause, until.Left()));
  }
}

absl::StatusOr<std::unique_ptr<Store>> OpenTlsStore(
    const TlsStoreOptions& options, absl::Time deadline) {
  if (options.rank == Rank(0)) return ServeTlsStore(options, deadline);
  return ConnectTlsStore(options, deadline);
}

}  // namespace tessera::collectives
