#include "collectives/groups/host_hierarchy.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "collectives/bootstrap/host_id.h"
#include "collectives/communicator.h"
#include "collectives/engine/operation_context.h"
#include "collectives/groups/agreement.h"

namespace tessera::collectives {
namespace {

// All ranks again, by a number that no user's subgroup has: those are hashes of
// lists.
absl::StatusOr<std::unique_ptr<Communicator>> GroupBeside(
    Engine& engine, absl::Duration timeout) {
  constexpr uint32_t kHostsGroup = 3;
  std::vector<Rank> everyone;
  for (int64_t r = 0; r < engine.size(); ++r) everyone.push_back(Rank(r));
  const int64_t deadline = MonotonicNanos() + absl::ToInt64Nanoseconds(std::min(
                                                  timeout, absl::Hours(1)));
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<Engine> beside,
      engine.CreateSubgroup(everyone, kHostsGroup, deadline));
  CommunicatorOptions options;
  options.name = "hosts";
  options.timeout = timeout;
  return Communicator::Create(std::move(beside), std::move(options));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Hierarchy>> HostHierarchy(
    Engine& engine, std::string_view host, absl::Duration timeout) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                           GroupBeside(engine, timeout));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> hosts,
                           ExchangeTexts(*group, host, timeout));
  std::map<std::string, int64_t> numbers;
  std::vector<int64_t> labels;
  for (const std::string& name : hosts) {
    const auto next = static_cast<int64_t>(numbers.size());
    labels.push_back(numbers.try_emplace(name, next).first->second);
  }
  if (numbers.size() == 1 || numbers.size() == hosts.size()) return nullptr;
  TESSERA_ASSIGN_OR_RETURN(Hierarchy hierarchy,
                           Hierarchy::FromLabels({{std::move(labels)}}));
  return std::make_shared<const Hierarchy>(std::move(hierarchy));
}

absl::StatusOr<std::shared_ptr<const Hierarchy>> HostHierarchy(
    Engine& engine, absl::Duration timeout) {
  TESSERA_ASSIGN_OR_RETURN(const HostId host, HostId::Self());
  return HostHierarchy(engine, host.ToString(), timeout);
}

}  // namespace tessera::collectives
