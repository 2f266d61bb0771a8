#include "tensor_parallel/sharding/redistribution_plan.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "collectives/reduction/reduction.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

namespace {

// The sum of all blocks but the rank's own.
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

namespace {

using Axes = std::vector<std::string>;

bool Contains(std::span<const std::string> axes, const std::string& axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

void Append(Axes& axes, std::span<const std::string> more) {
  axes.insert(axes.end(), more.begin(), more.end());
}

// The source axes of a dimension along which ranks must exchange to reach `to`:
// all after the common prefix.
Axes ExchangeAxes(const DimSharding& from, const DimSharding& to) {
  if (from == to) return {};
  size_t same = 0;
  if (from.rule == to.rule && !from.rule.fused()) {
    while (same < std::min(from.axes.size(), to.axes.size()) &&
           from.axes[same] == to.axes[same]) {
      ++same;
    }
  }
  return {from.axes.begin() + static_cast<std::ptrdiff_t>(same),
          from.axes.end()};
}

class Steps {
 public:
  Steps(const topology::Mesh& mesh, const ShardSpec& spec,
        const ShardSpec& target, std::span<const std::string> axes)
      : mesh_(mesh), spec_(spec), target_(target) {
    const Axes used = spec.AxesInUse();
    for (const std::string& axis : axes) {
      if (!Contains(used, axis)) free_.push_back(axis);
    }
  }

  std::vector<RedistributionStep> Take() && { return std::move(steps_); }

  void AddSlices() {
    for (const std::string& axis : free_) {
      for (size_t dim = 0; dim < spec_.dims.size(); ++dim) {
        if (spec_.dims[dim].rule.fused()) continue;
        ShardSpec to = spec_;
        to.dims[dim].axes.push_back(axis);
        Add(StepKind::kSlice, {}, std::move(to));
      }
      if (!target_.IsPartial(axis)) continue;
      ShardSpec to = spec_;
      to.partial.push_back(axis);
      Add(StepKind::kZeroPad, {axis}, std::move(to));
    }
  }

  // All that take axes from the end of a dimension.
  void AddGathersAndMoves(size_t dim) {
    const DimSharding& from = spec_.dims[dim];
    const size_t fewest = from.rule.fused() ? from.axes.size() : 1;
    for (size_t count = std::max<size_t>(1, fewest); count <= from.axes.size();
         ++count) {
      ShardSpec to = spec_;
      to.dims[dim].axes.resize(from.axes.size() - count);
      const Axes last(from.axes.end() - static_cast<std::ptrdiff_t>(count),
                      from.axes.end());
      Add(StepKind::kAllGather, last, to);
      if (from.rule.fused()) continue;
      if (count == 1 && target_.IsPartial(last[0])) {
        ShardSpec padded = to;
        padded.partial.push_back(last[0]);
        Add(StepKind::kZeroPad, last, std::move(padded));
      }
      for (size_t other = 0; other < spec_.dims.size(); ++other) {
        if (other == dim || spec_.dims[other].rule.fused()) continue;
        ShardSpec moved = to;
        Append(moved.dims[other].axes, last);
        Add(StepKind::kAllToAll, last, std::move(moved));
      }
    }
  }

  void AddReductions() {
    Axes reducible;
    for (const std::string& axis : spec_.partial) {
      if (!target_.IsPartial(axis)) reducible.push_back(axis);
    }
    for (uint64_t set = 1; set < uint64_t{1} << reducible.size(); ++set) {
      Axes axes;
      for (size_t i = 0; i < reducible.size(); ++i) {
        if (set >> i & 1) axes.push_back(reducible[i]);
      }
      Add(StepKind::kAllReduce, axes, Without(axes));
      if (axes.size() == 1) AddScatters(axes[0]);
    }
    for (size_t dim = 0; dim < spec_.dims.size(); ++dim) {
      AddScatterToTarget(dim, reducible);
    }
  }

  // Moves one dimension, or all of them, directly to the target's sharding.
  void AddJumps() {
    ShardSpec all = spec_;
    bool possible = true;
    for (size_t dim = 0; dim < spec_.dims.size(); ++dim) {
      all.dims[dim] = target_.dims[dim];
      bool alone = true;
      for (const std::string& axis : target_.dims[dim].axes) {
        possible &= !spec_.IsPartial(axis);
        alone &= Contains(free_, axis) || Contains(spec_.dims[dim].axes, axis);
      }
      if (!alone || spec_.dims[dim] == target_.dims[dim]) continue;
      ShardSpec one = spec_;
      one.dims[dim] = target_.dims[dim];
      AddExchange(std::move(one));
    }
    if (possible && !(all == spec_)) AddExchange(std::move(all));
  }

 private:
  void AddScatters(const std::string& axis) {
    for (size_t dim = 0; dim < spec_.dims.size(); ++dim) {
      if (spec_.dims[dim].rule.fused()) continue;
      ShardSpec to = Without(std::span(&axis, 1));
      to.dims[dim].axes.push_back(axis);
      Add(StepKind::kReduceScatter, {axis}, std::move(to));
    }
  }

  // Handles targets whose additional axes of this dimension are all partial
  // here.
  void AddScatterToTarget(size_t dim, std::span<const std::string> reducible) {
    const DimSharding& from = spec_.dims[dim];
    const DimSharding& to = target_.dims[dim];
    if (to.axes.size() <= from.axes.size()) return;
    if (!from.axes.empty() && (from.rule != to.rule || to.rule.fused())) return;
    const auto middle =
        to.axes.begin() + static_cast<std::ptrdiff_t>(from.axes.size());
    const Axes added(middle, to.axes.end());
    if (!std::equal(from.axes.begin(), from.axes.end(), to.axes.begin()) ||
        !std::all_of(added.begin(), added.end(), [&](const std::string& axis) {
          return Contains(reducible, axis);
        })) {
      return;
    }
    ShardSpec scattered = Without(added);
    scattered.dims[dim] = to;
    Add(StepKind::kReduceScatter, added, std::move(scattered));
  }

  ShardSpec Without(std::span<const std::string> axes) const {
    ShardSpec spec = spec_;
    std::erase_if(spec.partial, [&](const std::string& axis) {
      return Contains(axes, axis);
    });
    return spec;
  }

  void AddExchange(ShardSpec to) {
    Axes group;
    for (size_t dim = 0; dim < spec_.dims.size(); ++dim) {
      Append(group, ExchangeAxes(spec_.dims[dim], to.dims[dim]));
    }
    const StepKind kind =
        OnlyTakesAxes(to) ? StepKind::kAllGather : StepKind::kAllToAll;
    Add(kind, group, std::move(to));
  }

  // Returns true if all ranks then have the data of their group.
  bool OnlyTakesAxes(const ShardSpec& to) const {
    for (size_t dim = 0; dim < to.dims.size(); ++dim) {
      const DimSharding& a = spec_.dims[dim];
      const DimSharding& b = to.dims[dim];
      if (a == b || b.axes.empty()) continue;
      if (a.rule != b.rule || a.rule.fused() || b.axes.size() > a.axes.size() ||
          !std::equal(b.axes.begin(), b.axes.end(), a.axes.begin())) {
        return false;
      }
    }
    return true;
  }

  void Add(StepKind kind, const Axes& axes, ShardSpec to) {
    for (size_t dim = 0; dim < to.dims.size(); ++dim) {
      if (to.dims[dim].axes.empty()) to.dims[dim].rule = target_.dims[dim].rule;
    }
    if (kind == StepKind::kZeroPad) {
      steps_.push_back({kind, axes, spec_, std::move(to)});
      return;
    }
    Axes group;
    for (const std::string& axis : axes) {
      if (mesh_.SizeOf(axis)->value() > 1) group.push_back(axis);
    }
    steps_.push_back(
        {group.empty() ? StepKind::kSlice : kind, group, spec_, std::move(to)});
  }

  const topology::Mesh& mesh_;
  const ShardSpec& spec_;
  const ShardSpec& target_;
  Axes free_;
  std::vector<RedistributionStep> steps_;
};

}  // namespace

std::vector<RedistributionStep> NextSteps(const topology::Mesh& mesh,
                                          const ShardSpec& spec,
                                          const ShardSpec& target,
                                          std::span<const std::string> axes) {
  Steps steps(mesh, spec, target, axes);
  steps.AddSlices();
  for (size_t dim = 0; dim < spec.dims.size(); ++dim) {
    steps.AddGathersAndMoves(dim);
  }
  steps.AddReductions();
  steps.AddJumps();
  return std::move(steps).Take();
}

namespace {

std::vector<std::string> AxesOfBoth(const ShardSpec& a, const ShardSpec& b) {
  std::set<std::string> axes;
  for (const ShardSpec* spec : {&a, &b}) {
    const std::vector<std::string> used = spec->AxesInUse();
    axes.insert(used.begin(), used.end());
  }
  return {axes.begin(), axes.end()};
}

// Ranks, one for each place along `axes`: further ones do the same.
absl::StatusOr<std::vector<topology::Rank>> Representatives(
    const topology::Mesh& mesh, std::span<const std::string> axes) {
  if (axes.empty()) return std::vector<topology::Rank>{mesh.first_rank()};
  TESSERA_ASSIGN_OR_RETURN(const topology::Groups groups,
                           mesh.GroupsAlong(axes));
  return groups.MembersWith(mesh.first_rank());
}

absl::Status CheckQuestion(const topology::Mesh& mesh,
                           std::span<const int64_t> shape, DType dtype,
                           const ShardSpec& from, const ShardSpec& to) {
  if (!IsValid(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "redistribution of dtype number ", static_cast<int>(dtype),
        ", which is not valid; expected 0 to ", kAllDTypes.size() - 1));
  }
  for (const ShardSpec* spec : {&from, &to}) {
    TESSERA_RETURN_IF_ERROR(
        ShardOf(mesh, *spec, shape, mesh.first_rank()).status());
  }
  const std::vector<std::string> axes = AxesOfBoth(from, to);
  if (!axes.empty()) {
    TESSERA_RETURN_IF_ERROR(
        mesh.DivisionWith(axes).status(),
        Annotate(_, absl::StrCat("redistribution of ", from.ToString(), " to ",
                                 to.ToString())));
  }
  for (const std::string& axis : from.partial) {
    if (to.IsPartial(axis) || collectives::IsReducible(dtype)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "partial sums along \"", axis, "\" of ", DTypeName(dtype),
        ", which cannot be reduced; convert them to bf16 or wider first"));
  }
  return absl::OkStatus();
}

// The place of a dimension without axes does not depend on its rule: there is
// one rule for it, so that there is one spec.
ShardSpec WithRulesOf(const ShardSpec& target, ShardSpec spec) {
  for (size_t dim = 0; dim < spec.dims.size(); ++dim) {
    if (spec.dims[dim].axes.empty()) {
      spec.dims[dim].rule = target.dims[dim].rule;
    }
  }
  return spec;
}

class Search {
 public:
  Search(const topology::Mesh& mesh, std::span<const int64_t> shape,
         DType dtype, const ShardSpec& target, const PlanOptions& options)
      : mesh_(mesh),
        shape_(shape),
        dtype_(dtype),
        target_(target),
        options_(options) {}

  absl::Status Run(const ShardSpec& from) {
    const std::vector<std::string> axes = AxesOfBoth(from, target_);
    Reach(from.ToString(), {.spec = from});
    while (!open_.empty()) {
      const auto [cost, key] = *open_.begin();
      if (key == target_.ToString()) return absl::OkStatus();
      open_.erase(open_.begin());
      if (++closed_ > options_.most_specs && Has(target_)) {
        complete_ = false;
        return absl::OkStatus();
      }
      // A copy, because the code below adds to the map.
      const ShardSpec spec = reached_.at(key).spec;
      TESSERA_RETURN_IF_ERROR(Expand(key, cost, spec, axes));
    }
    return absl::InternalError(absl::StrCat("no redistribution from ",
                                            from.ToString(), " to ",
                                            target_.ToString()));
  }

  void Fill(RedistributionPlan& plan) const {
    const Node* node = &reached_.at(target_.ToString());
    plan.cost = node->cost;
    plan.cheapest = complete_;
    for (; !node->before.empty(); node = &reached_.at(node->before)) {
      plan.steps.push_back(node->step);
    }
    std::reverse(plan.steps.begin(), plan.steps.end());
  }

 private:
  struct Node {
    ShardSpec spec = {};
    int64_t cost = 0;
    std::string before = {};  // The key of the spec before; none of the first.
    RedistributionStep step = {};
  };

  bool Has(const ShardSpec& spec) const {
    return reached_.count(spec.ToString()) > 0;
  }

  absl::Status Expand(const std::string& key, int64_t cost,
                      const ShardSpec& spec,
                      std::span<const std::string> axes) {
    for (RedistributionStep& step : NextSteps(mesh_, spec, target_, axes)) {
      const std::string next = step.to.ToString();
      const auto known = reached_.find(next);
      if (known != reached_.end() && known->second.cost <= cost) continue;
      TESSERA_ASSIGN_OR_RETURN(const int64_t more,
                               CostOf(mesh_, shape_, dtype_, step, options_));
      if (known != reached_.end() && known->second.cost <= cost + more) {
        continue;
      }
      ShardSpec to = step.to;
      Reach(next, {std::move(to), cost + more, key, std::move(step)});
    }
    return absl::OkStatus();
  }

  void Reach(const std::string& key, Node node) {
    const auto known = reached_.find(key);
    if (known != reached_.end()) open_.erase({known->second.cost, key});
    open_.emplace(node.cost, key);
    reached_[key] = std::move(node);
  }

  const topology::Mesh& mesh_;
  const std::span<const int64_t> shape_;
  const DType dtype_;
  const ShardSpec& target_;
  const PlanOptions& options_;
  std::map<std::string, Node> reached_;
  std::set<std::pair<int64_t, std::string>> open_;
  int64_t closed_ = 0;
  bool complete_ = true;
};

}  // namespace

absl::StatusOr<StepBytes> RedistributionPlan::BytesOf(
    const topology::Mesh& mesh, topology::Rank rank) const {
  StepBytes total;
  for (const RedistributionStep& step : steps) {
    TESSERA_ASSIGN_OR_RETURN(const StepGroup group,
                             GroupOf(mesh, shape, step, rank));
    const StepBytes bytes = tensor_parallel::BytesOf(group, step.kind, dtype);
    total.sent += bytes.sent;
    total.received += bytes.received;
    total.counted += bytes.counted;
  }
  return total;
}

std::string RedistributionPlan::ToString() const {
  return absl::StrJoin(steps, "\n",
                       [](std::string* out, const RedistributionStep& step) {
                         out->append(step.ToString());
                       });
}

absl::StatusOr<int64_t> CostOf(const topology::Mesh& mesh,
                               std::span<const int64_t> shape, DType dtype,
                               const RedistributionStep& step,
                               const PlanOptions& options) {
  // Fewer local copies break ties between plans.
  if (IsLocal(step.kind)) return 1;
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<topology::Rank> ranks,
      Representatives(mesh, AxesOfBoth(step.from, step.to)));
  int64_t most = 0;
  std::set<topology::Rank> counted;
  for (const topology::Rank rank : ranks) {
    if (counted.count(rank) > 0) continue;
    TESSERA_ASSIGN_OR_RETURN(StepGroup group, GroupOf(mesh, shape, step, rank));
    // Computes the whole group at once because its shards dominate the work.
    for (group.self = 0; group.self < group.members.size(); ++group.self) {
      const StepBytes bytes = BytesOf(group, step.kind, dtype);
      most = std::max({most, bytes.sent, bytes.received});
    }
    counted.insert(group.members.begin(), group.members.end());
  }
  return most + options.latency_bytes;
}

absl::StatusOr<RedistributionPlan> PlanRedistribution(
    const topology::Mesh& mesh, std::span<const int64_t> shape, DType dtype,
    const ShardSpec& from, const ShardSpec& to, const PlanOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckQuestion(mesh, shape, dtype, from, to));
  RedistributionPlan plan = {.shape = Dims(shape.begin(), shape.end()),
                             .dtype = dtype,
                             .from = from,
                             .to = to};
  Search search(mesh, shape, dtype, to, options);
  TESSERA_RETURN_IF_ERROR(search.Run(WithRulesOf(to, from)));
  search.Fill(plan);
  return plan;
}

}  // namespace tessera::tensor_parallel
