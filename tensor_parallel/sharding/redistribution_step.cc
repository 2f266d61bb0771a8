#include "tensor_parallel/sharding/redistribution_step.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {
namespace {

// Of all but the rank's own block.
int64_t SumOfOthers(std::span<const int64_t> counts, size_t self) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0}) -
         counts[self];
}

// The blocks in which a tensor that all have is reduced and gathered.
std::vector<int64_t> BlocksOf(const StepGroup& group) {
  return Partition::Balanced(group.from[group.self].element_count(),
                             static_cast<int64_t>(group.from.size()))
      ->Sizes();
}

std::vector<int64_t> Counts(std::span<const Shard> shards) {
  std::vector<int64_t> counts;
  for (const Shard& shard : shards) counts.push_back(shard.element_count());
  return counts;
}

std::vector<int64_t> SharedCounts(std::span<const Shard> shards,
                                  const Shard& mine) {
  std::vector<int64_t> counts;
  for (const Shard& shard : shards) {
    counts.push_back(Intersection(shard, mine).element_count());
  }
  return counts;
}

}  // namespace

std::string_view StepKindName(StepKind kind) {
  constexpr std::array<std::string_view, 6> kNames = {
      "slice",          "zero_pad",   "all_gather",
      "reduce_scatter", "all_to_all", "all_reduce"};
  return kNames[static_cast<size_t>(kind)];
}

std::string RedistributionStep::ToString() const {
  return absl::StrCat(StepKindName(kind), axes.empty() ? "" : " over ",
                      absl::StrJoin(axes, ","), ": ", from.ToString(), " -> ",
                      to.ToString());
}

std::ostream& operator<<(std::ostream& os, const RedistributionStep& step) {
  return os << step.ToString();
}

absl::StatusOr<StepGroup> GroupOf(const topology::Mesh& mesh,
                                  std::span<const int64_t> shape,
                                  const RedistributionStep& step,
                                  topology::Rank rank) {
  std::vector<topology::Rank> members = {rank};
  if (!IsLocal(step.kind)) {
    TESSERA_ASSIGN_OR_RETURN(const topology::Groups groups,
                             mesh.GroupsAlong(step.axes));
    TESSERA_ASSIGN_OR_RETURN(members, groups.MembersWith(rank));
  }
  StepGroup group;
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] == rank) group.self = i;
    TESSERA_ASSIGN_OR_RETURN(Shard from,
                             ShardOf(mesh, step.from, shape, members[i]));
    TESSERA_ASSIGN_OR_RETURN(Shard to,
                             ShardOf(mesh, step.to, shape, members[i]));
    group.from.push_back(std::move(from));
    group.to.push_back(std::move(to));
  }
  group.members = std::move(members);
  return group;
}

std::vector<int64_t> SendCounts(const StepGroup& group, StepKind kind) {
  const size_t n = group.from.size();
  switch (kind) {
    case StepKind::kAllGather:
      return std::vector<int64_t>(n, group.from[group.self].element_count());
    case StepKind::kReduceScatter:
      return Counts(group.to);
    case StepKind::kAllToAll:
      return SharedCounts(group.to, group.from[group.self]);
    case StepKind::kAllReduce:
      return BlocksOf(group);
    default:
      return std::vector<int64_t>(n);
  }
}

std::vector<int64_t> ReceiveCounts(const StepGroup& group, StepKind kind) {
  const size_t n = group.from.size();
  switch (kind) {
    case StepKind::kAllGather:
      return Counts(group.from);
    case StepKind::kReduceScatter:
      return std::vector<int64_t>(n, group.to[group.self].element_count());
    case StepKind::kAllToAll:
      return SharedCounts(group.from, group.to[group.self]);
    case StepKind::kAllReduce:
      return std::vector<int64_t>(n, BlocksOf(group)[group.self]);
    default:
      return std::vector<int64_t>(n);
  }
}

StepBytes BytesOf(const StepGroup& group, StepKind kind, DType dtype) {
  if (IsLocal(kind)) return {};
  const std::vector<int64_t> send = SendCounts(group, kind);
  const std::vector<int64_t> receive = ReceiveCounts(group, kind);
  StepBytes bytes = {.sent = SumOfOthers(send, group.self),
                     .received = SumOfOthers(receive, group.self)};
  bytes.counted = kind == StepKind::kAllGather
                      ? bytes.received + receive[group.self]
                      : bytes.sent + send[group.self];
  if (kind == StepKind::kAllReduce) {
    bytes.sent = bytes.received = bytes.sent + bytes.received;
  }
  const int64_t size = SizeInBytes(dtype);
  return {bytes.sent * size, bytes.received * size, bytes.counted * size};
}

}  // namespace tessera::tensor_parallel
