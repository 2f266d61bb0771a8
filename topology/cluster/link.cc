#include "topology/cluster/link.h"

#include "absl/strings/str_join.h"

namespace tessera::topology {
namespace {

constexpr std::array<std::string_view, kLinkLevels> kLevelNames = {
    "device", "nvlink", "numa_node", "socket", "host", "network"};

constexpr std::array<std::string_view, kLinkKinds> kKindNames = {
    "memory",     "nvlink",  "pcie", "shared_memory", "socket_interconnect",
    "infiniband", "ethernet"};

template <typename Enum, size_t n>
std::optional<Enum> Find(const std::array<std::string_view, n>& names,
                         std::string_view name) {
  for (size_t i = 0; i < n; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace

std::string_view LinkLevelName(LinkLevel level) {
  return kLevelNames[static_cast<size_t>(level)];
}

std::optional<LinkLevel> ParseLinkLevel(std::string_view name) {
  return Find<LinkLevel>(kLevelNames, name);
}

std::string_view LinkKindName(LinkKind kind) {
  return kKindNames[static_cast<size_t>(kind)];
}

std::optional<LinkKind> ParseLinkKind(std::string_view name) {
  return Find<LinkKind>(kKindNames, name);
}

std::string LinkLevelNames() { return absl::StrJoin(kLevelNames, ", "); }

std::string LinkKindNames() { return absl::StrJoin(kKindNames, ", "); }

LinkTable GpuLinks() {
  constexpr double kPcie5x16 = 32e9 * 16 * 128 / 130 / 8;
  return {{
      {LinkKind::kMemory, 0, 3.35e12},
      {LinkKind::kNvlink, 3.4e-6, 450e9},
      {LinkKind::kPcie, 5.7e-6, kPcie5x16},
      {LinkKind::kPcie, 5.7e-6, kPcie5x16},
      {LinkKind::kSocketInterconnect, 11.4e-6, 22e9},
      {LinkKind::kInfiniband, 14e-6, 50e9},
  }};
}

LinkTable CpuLinks() {
  return {{
      {LinkKind::kMemory, 0, 20e9},
      {LinkKind::kNvlink, 3.4e-6, 450e9},
      {LinkKind::kSharedMemory, 1e-6, 10e9},
      {LinkKind::kSharedMemory, 1.5e-6, 8e9},
      {LinkKind::kSocketInterconnect, 2e-6, 5e9},
      {LinkKind::kEthernet, 20e-6, 12.5e9},
  }};
}

}  // namespace tessera::topology
