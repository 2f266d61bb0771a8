#include "collectives/groups/host_hierarchy.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/os/processors.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/peer_process.h"
#include "collectives/communicator.h"
#include "collectives/groups/agreement.h"

namespace tessera::collectives {

namespace {

absl::StatusOr<std::unique_ptr<Communicator>> GroupBeside(
    Engine& engine, absl::Duration timeout) {
  constexpr uint32_t kHostsGroup = 3;
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> beside,
                           Duplicate(engine, kHostsGroup, timeout));
  CommunicatorOptions options;
  options.name = "hosts";
  options.timeout = timeout;
  return Communicator::Create(std::move(beside), std::move(options));
}

// "1 HOST"; "? HOST" if the socket is unknown.
std::string ToText(const RankLocation& location) {
  return absl::StrCat(
      location.socket ? absl::StrCat(*location.socket) : std::string("?"), " ",
      location.host);
}

absl::StatusOr<RankLocation> FromText(std::string_view text) {
  const size_t space = text.find(' ');
  if (space == std::string_view::npos) {
    return absl::InternalError(
        absl::StrCat("a rank sent the location ", Quoted(text),
                     ", expected \"SOCKET HOST\"; all ranks must run the same "
                     "program"));
  }
  RankLocation location;
  location.host = std::string(text.substr(space + 1));
  int64_t socket = 0;
  if (absl::SimpleAtoi(text.substr(0, space), &socket)) {
    location.socket = socket;
  }
  return location;
}

// Gives equal keys equal numbers.
template <typename Key>
std::vector<int64_t> Number(const std::vector<Key>& keys) {
  std::map<Key, int64_t> numbers;
  std::vector<int64_t> labels;
  for (const Key& key : keys) {
    const auto next = static_cast<int64_t>(numbers.size());
    labels.push_back(numbers.try_emplace(key, next).first->second);
  }
  return labels;
}

bool SeparatesRanks(const std::vector<int64_t>& labels) {
  const size_t groups = std::set(labels.begin(), labels.end()).size();
  return groups > 1 && groups < labels.size();
}

}  // namespace

absl::StatusOr<RankLocation> RankLocation::Self() {
  TESSERA_ASSIGN_OR_RETURN(const HostId host, HostId::Self());
  return RankLocation{host.ToString(), SocketOf(AllowedProcessors())};
}

std::shared_ptr<const Hierarchy> HostHierarchy(
    std::span<const RankLocation> locations) {
  std::set<std::string_view> one_socket;
  for (const RankLocation& location : locations) {
    if (!location.socket) one_socket.insert(location.host);
  }
  std::vector<std::pair<std::string_view, int64_t>> sockets;
  std::vector<std::string_view> hosts;
  for (const RankLocation& location : locations) {
    const bool known = !one_socket.contains(location.host);
    sockets.emplace_back(location.host, known ? *location.socket : 0);
    hosts.push_back(location.host);
  }
  const std::vector<int64_t> of_sockets = Number(sockets);
  const std::vector<int64_t> of_hosts = Number(hosts);
  std::vector<std::vector<int64_t>> levels;
  if (SeparatesRanks(of_sockets) && of_sockets != of_hosts) {
    levels.push_back(of_sockets);
  }
  if (SeparatesRanks(of_hosts)) levels.push_back(of_hosts);
  if (levels.empty()) return nullptr;
  // Always valid: a socket lies within one host, so the levels are nested.
  return std::make_shared<const Hierarchy>(*Hierarchy::FromLabels(levels));
}

absl::StatusOr<std::vector<RankLocation>> ExchangeLocations(
    Engine& engine, const RankLocation& mine, absl::Duration timeout) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                           GroupBeside(engine, timeout));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                           ExchangeTexts(*group, ToText(mine), timeout));
  std::vector<RankLocation> locations;
  for (const std::string& text : texts) {
    TESSERA_ASSIGN_OR_RETURN(locations.emplace_back(), FromText(text));
  }
  return locations;
}

}  // namespace tessera::collectives
