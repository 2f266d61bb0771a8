#include "tensor_parallel/sharding/redistribution.h"

#include <algorithm>
#include <array>
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

std::string_view StepKindName(StepKind kind) {
  constexpr std::array<std::string_view, 6> kNames = {
      "slice",          "pad",        "all_gather",
      "reduce_scatter", "all_to_all", "all_reduce"};
  return kNames[static_cast<size_t>(kind)];
}

std::string RedistributionStep::ToString() const {
  return absl::StrCat(StepKindName(kind), axes.empty() ? "" : " over ",
                      absl::StrJoin(axes, ","), ": ",
                      FormatPlacements(from.placements()), " -> ",
                      FormatPlacements(to.placements()));
}

std::ostream& operator<<(std::ostream& os, const RedistributionStep& step) {
  return os << step.ToString();
}

Box StepGroup::BlockOf(size_t sender, size_t receiver) const {
  switch (kind) {
    case StepKind::kAllGather:
      return from[sender];
    case StepKind::kReduceScatter:
      return to[receiver];
    default:
      return Intersection(from[sender], to[receiver]);
  }
}

StepBytes StepGroup::BytesOf(size_t self, DType dtype) const {
  if (IsLocal(kind)) return {};
  const int64_t width = SizeInBytes(dtype);
  if (kind == StepKind::kAllReduce) {
    const int64_t count = from[self].element_count();
    const auto ranks = static_cast<int64_t>(members.size());
    const int64_t own =
        Partition::Balanced(count, ranks)->SizeOf(static_cast<int64_t>(self));
    const int64_t moved = (count - own + (ranks - 1) * own) * width;
    return {.sent = moved, .received = moved, .counted = count * width};
  }
  int64_t sent = 0, received = 0;
  for (size_t other = 0; other < members.size(); ++other) {
    if (other == self) continue;
    sent += BlockOf(self, other).element_count() * width;
    received += BlockOf(other, self).element_count() * width;
  }
  const int64_t kept = BlockOf(self, self).element_count() * width;
  return {.sent = sent,
          .received = received,
          .counted = (kind == StepKind::kAllGather ? received : sent) + kept};
}

size_t StepGroup::IndexOf(topology::Rank rank) const {
  return static_cast<size_t>(std::find(members.begin(), members.end(), rank) -
                             members.begin());
}

absl::StatusOr<StepGroup> GroupOf(const RedistributionStep& step,
                                  topology::Rank rank) {
  const topology::Mesh& mesh = step.from.mesh();
  TESSERA_RETURN_IF_ERROR(mesh.CoordinatesOf(rank).status());
  StepGroup group = {.kind = step.kind, .members = {rank}};
  if (!IsLocal(step.kind)) {
    TESSERA_ASSIGN_OR_RETURN(const topology::Groups groups,
                             mesh.GroupsAlong(step.axes));
    TESSERA_ASSIGN_OR_RETURN(group.members, groups.MembersWith(rank));
  }
  for (const topology::Rank member : group.members) {
    group.from.push_back(step.from.BoxOf(member));
    group.to.push_back(step.to.BoxOf(member));
  }
  return group;
}

namespace {

using Axes = std::vector<std::string>;

bool Contains(const Axes& axes, const std::string& axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

void Append(Axes& axes, const Axes& more) {
  axes.insert(axes.end(), more.begin(), more.end());
}

Axes AxesOf(const Placements& placements, size_t first = 0) {
  Axes axes;
  for (size_t i = first; i < placements.size(); ++i) {
    axes.push_back(placements[i].axis);
  }
  return axes;
}

Axes AxesOfBoth(const ShardedLayout& a, const ShardedLayout& b) {
  std::set<std::string> axes;
  for (const ShardedLayout* layout : {&a, &b}) {
    for (std::string& axis : layout->axes()) axes.insert(std::move(axis));
  }
  return {axes.begin(), axes.end()};
}

// Placements by dimension, in order, and the partial axes.
struct State {
  explicit State(const ShardedLayout& layout) : dims(layout.shape().size()) {
    for (const Placement& placement : layout.placements()) {
      if (placement.is_partial()) {
        partial.push_back(placement.axis);
      } else {
        dims[static_cast<size_t>(placement.dim)].push_back(placement);
      }
    }
  }

  Placements All() const {
    Placements all;
    for (const std::string& axis : partial) all.push_back({.axis = axis});
    for (const Placements& dim : dims) {
      all.insert(all.end(), dim.begin(), dim.end());
    }
    return all;
  }

  void RemovePartial(const Axes& axes) {
    std::erase_if(
        partial, [&](const std::string& axis) { return Contains(axes, axis); });
  }

  std::vector<Placements> dims;
  Axes partial = {};
};

size_t CommonFront(const Placements& a, const Placements& b) {
  size_t common = 0;
  while (common < std::min(a.size(), b.size()) && a[common] == b[common]) {
    ++common;
  }
  return common;
}

class Steps {
 public:
  Steps(const ShardedLayout& from, const ShardedLayout& target)
      : from_(from), state_(from), target_(target) {
    const Axes used = from.axes();
    for (const std::string& axis : AxesOfBoth(from, target)) {
      if (!Contains(used, axis)) free_.push_back(axis);
    }
    for (const std::string& axis : state_.partial) {
      if (!Contains(target_.partial, axis)) reducible_.push_back(axis);
    }
  }

  std::vector<RedistributionStep> Take() && { return std::move(steps_); }

  void AddSlicesAndPads() {
    for (const std::string& axis : free_) {
      for (size_t dim = 0; dim < state_.dims.size(); ++dim) {
        State to = state_;
        Place({axis}, dim, to);
        Add(StepKind::kSlice, {}, to);
      }
      AddPad(axis, state_);
    }
  }

  // Takes axes from the end of a dimension.
  void AddGathersAndMoves(size_t dim) {
    const Placements& axes = state_.dims[dim];
    for (size_t kept = 0; kept < axes.size(); ++kept) {
      const Axes last = AxesOf(axes, kept);
      State to = state_;
      to.dims[dim].resize(kept);
      Add(StepKind::kAllGather, last, to);
      if (last.size() == 1) AddPad(last[0], to);
      for (size_t other = 0; other < state_.dims.size(); ++other) {
        if (other == dim) continue;
        State moved = to;
        Place(last, other, moved);
        Add(StepKind::kAllToAll, last, moved);
      }
    }
  }

  void AddReductions() {
    for (const std::string& axis : reducible_) {
      AddReduction(StepKind::kAllReduce, {axis}, state_);
      for (size_t dim = 0; dim < state_.dims.size(); ++dim) {
        State to = state_;
        Place({axis}, dim, to);
        AddReduction(StepKind::kReduceScatter, {axis}, to);
      }
    }
    Axes unplaced = reducible_;
    for (size_t dim = 0; dim < state_.dims.size(); ++dim) {
      AddScatterToTarget(dim);
      std::erase_if(unplaced, [&](const std::string& axis) {
        return Contains(AxesOf(target_.dims[dim]), axis);
      });
    }
    for (const Axes& axes : {reducible_, unplaced}) {
      if (axes.size() > 1) AddReduction(StepKind::kAllReduce, axes, state_);
    }
  }

  // Makes one dimension, or all of them, as in the target.
  void AddJumps() {
    State all = state_;
    all.dims = target_.dims;
    AddExchange(all);
    for (size_t dim = 0; dim < state_.dims.size(); ++dim) {
      State one = state_;
      one.dims[dim] = target_.dims[dim];
      AddExchange(one);
    }
  }

 private:
  // Lets axes shard a dimension, after those that do, by the target's rule if
  // it has one there.
  void Place(const Axes& axes, size_t dim, State& to) const {
    for (const std::string& axis : axes) {
      Placement placement = {.axis = axis, .dim = static_cast<int>(dim)};
      for (const Placement& wanted : target_.dims[dim]) {
        if (wanted.axis == axis) placement.rule = wanted.rule;
      }
      to.dims[dim].push_back(std::move(placement));
    }
  }

  void AddPad(const std::string& axis, State to) {
    if (!Contains(target_.partial, axis)) return;
    to.partial.push_back(axis);
    Add(StepKind::kPad, {axis}, to);
  }

  void AddReduction(StepKind kind, const Axes& axes, State to) {
    to.RemovePartial(axes);
    Add(kind, axes, to);
  }

  // Handles targets whose additional axes of the dimension are partial here.
  void AddScatterToTarget(size_t dim) {
    const Placements& wanted = target_.dims[dim];
    const size_t here = state_.dims[dim].size();
    const Axes added = AxesOf(wanted, std::min(here, wanted.size()));
    if (added.size() < 2 || CommonFront(state_.dims[dim], wanted) != here ||
        !std::all_of(added.begin(), added.end(), [&](const auto& axis) {
          return Contains(reducible_, axis);
        })) {
      return;
    }
    State to = state_;
    to.dims[dim] = wanted;
    AddReduction(StepKind::kReduceScatter, added, to);
  }

  // Ranks exchange along the axes behind those that a dimension keeps.
  void AddExchange(const State& to) {
    Axes group;
    bool only_gathers = true;
    for (size_t dim = 0; dim < state_.dims.size(); ++dim) {
      const size_t kept = CommonFront(state_.dims[dim], to.dims[dim]);
      Append(group, AxesOf(state_.dims[dim], kept));
      only_gathers &= kept == to.dims[dim].size();
    }
    Add(only_gathers ? StepKind::kAllGather : StepKind::kAllToAll, group, to);
  }

  // Leaves out steps to a layout that is invalid, such as with an axis that is
  // used twice, or that is the present one.
  void Add(StepKind kind, const Axes& axes, const State& to) {
    const absl::StatusOr<ShardedLayout> layout =
        from_.With(to.All(), EmptyShards::kAllowed);
    if (!layout.ok() || *layout == from_) return;
    Axes group;
    for (const std::string& axis : axes) {
      if (from_.mesh().SizeOf(axis)->value() > 1) group.push_back(axis);
    }
    if (group.empty() && kind != StepKind::kPad) kind = StepKind::kSlice;
    steps_.push_back(
        {kind, kind == StepKind::kPad ? axes : group, from_, *layout});
  }

  const ShardedLayout& from_;
  const State state_;
  const State target_;
  Axes free_;       // Of the target alone.
  Axes reducible_;  // Partial, and not in the target.
  std::vector<RedistributionStep> steps_;
};

}  // namespace

std::vector<RedistributionStep> NextSteps(const ShardedLayout& from,
                                          const ShardedLayout& target) {
  Steps steps(from, target);
  steps.AddSlicesAndPads();
  for (size_t dim = 0; dim < from.shape().size(); ++dim) {
    steps.AddGathersAndMoves(dim);
  }
  steps.AddReductions();
  steps.AddJumps();
  return std::move(steps).Take();
}

absl::StatusOr<int64_t> CostOf(const RedistributionStep& step, DType dtype,
                               const PlanOptions& options) {
  if (IsLocal(step.kind)) return 1;
  const topology::Mesh& mesh = step.from.mesh();
  // Ranks that differ along other axes do the same.
  TESSERA_ASSIGN_OR_RETURN(const topology::Groups groups,
                           mesh.GroupsAlong(AxesOfBoth(step.from, step.to)));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<topology::Rank> ranks,
                           groups.MembersWith(mesh.first_rank()));
  int64_t most = 0;
  std::set<topology::Rank> counted;
  for (const topology::Rank rank : ranks) {
    if (counted.count(rank) > 0) continue;
    TESSERA_ASSIGN_OR_RETURN(const StepGroup group, GroupOf(step, rank));
    for (size_t self = 0; self < group.members.size(); ++self) {
      const StepBytes bytes = group.BytesOf(self, dtype);
      most = std::max({most, bytes.sent, bytes.received});
    }
    counted.insert(group.members.begin(), group.members.end());
  }
  return most + options.latency_bytes;
}

absl::StatusOr<StepBytes> RedistributionPlan::BytesOf(
    topology::Rank rank) const {
  StepBytes total;
  TESSERA_RETURN_IF_ERROR(from.mesh().CoordinatesOf(rank).status());
  for (const RedistributionStep& step : steps) {
    TESSERA_ASSIGN_OR_RETURN(const StepGroup group, GroupOf(step, rank));
    const StepBytes bytes = group.BytesOf(group.IndexOf(rank), dtype);
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

namespace {

constexpr int64_t kMostLayouts = 2000;

absl::Status CheckQuestion(const ShardedLayout& from, const ShardedLayout& to,
                           DType dtype) {
  if (from.shape() != to.shape() ||
      from.mesh().world_size() != to.mesh().world_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "redistribution of ", from.ToString(), " over ",
        from.mesh().world_size(), " ranks to ", to.ToString(), " over ",
        to.mesh().world_size(), "; give layouts of one shape and mesh"));
  }
  if (const Axes axes = AxesOfBoth(from, to); !axes.empty()) {
    TESSERA_RETURN_IF_ERROR(from.mesh().DivisionWith(axes).status());
  }
  const Axes partial = State(to).partial;
  for (const std::string& axis : State(from).partial) {
    if (Contains(partial, axis) || collectives::IsReducible(dtype)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "partial sums along axis ", axis, " of ", DTypeName(dtype),
        ", which cannot be added; convert them to bf16 or a wider type"));
  }
  return absl::OkStatus();
}

class Search {
 public:
  Search(const ShardedLayout& target, DType dtype, const PlanOptions& options)
      : target_(target),
        key_(target.ToString()),
        dtype_(dtype),
        options_(options) {}

  absl::Status Run(const ShardedLayout& from) {
    Reach({.layout = from});
    for (int64_t closed = 0; !open_.empty(); ++closed) {
      const auto [cost, key] = *open_.begin();
      if (key == key_ || (closed >= kMostLayouts && reached_.contains(key_))) {
        return absl::OkStatus();
      }
      open_.erase(open_.begin());
      const ShardedLayout layout = reached_.at(key).layout;
      for (RedistributionStep& step : NextSteps(layout, target_)) {
        TESSERA_ASSIGN_OR_RETURN(const int64_t more,
                                 CostOf(step, dtype_, options_));
        Reach({.layout = step.to,
               .cost = cost + more,
               .before = key,
               .step = {std::move(step)}});
      }
    }
    return absl::InternalError(
        absl::StrCat("no steps from ", from.ToString(), " to ", key_));
  }

  void Fill(RedistributionPlan& plan) const {
    const Node* node = &reached_.at(key_);
    plan.cost = node->cost;
    for (; !node->before.empty(); node = &reached_.at(node->before)) {
      plan.steps.push_back(node->step.front());
    }
    std::reverse(plan.steps.begin(), plan.steps.end());
  }

 private:
  struct Node {
    ShardedLayout layout;
    int64_t cost = 0;
    std::string before = {};                    // Empty for the first node.
    std::vector<RedistributionStep> step = {};  // The step to this node.
  };

  // Keeps the cheapest way to a layout.
  void Reach(Node node) {
    const std::string key = node.layout.ToString();
    const auto known = reached_.find(key);
    if (known != reached_.end()) {
      if (known->second.cost <= node.cost) return;
      open_.erase({known->second.cost, key});
      reached_.erase(known);
    }
    open_.emplace(node.cost, key);
    reached_.emplace(key, std::move(node));
  }

  const ShardedLayout& target_;
  const std::string key_;
  const DType dtype_;
  const PlanOptions& options_;
  std::map<std::string, Node> reached_;
  std::set<std::pair<int64_t, std::string>> open_;
};

}  // namespace

absl::StatusOr<RedistributionPlan> PlanRedistribution(
    const ShardedLayout& from, const ShardedLayout& to, DType dtype,
    const PlanOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckQuestion(from, to, dtype));
  Search search(to, dtype, options);
  TESSERA_RETURN_IF_ERROR(search.Run(from));
  RedistributionPlan plan = {.dtype = dtype, .from = from, .to = to};
  search.Fill(plan);
  // Steps allow empty shards; the result is as requested.
  if (!plan.steps.empty()) plan.steps.back().to = to;
  return plan;
}

}  // namespace tessera::tensor_parallel
