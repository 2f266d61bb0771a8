#include "tensor_parallel/sharding/redistribution.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "collectives/reduction/reduction.h"
#include "tensor_parallel/sharding/partition.h"
#include "topology/axis.h"

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

// The axes of `a` that `b` does not have.
Axes Difference(Axes a, const Axes& b) {
  std::erase_if(a, [&](const std::string& axis) { return Contains(b, axis); });
  return a;
}

Axes AxesOfBoth(const ShardedLayout& a, const ShardedLayout& b) {
  Axes axes = a.axes();
  const Axes more = Difference(b.axes(), axes);
  axes.insert(axes.end(), more.begin(), more.end());
  return axes;
}

void AppendAxes(const Placements& placements, size_t first, Axes& axes) {
  for (size_t i = first; i < placements.size(); ++i) {
    axes.push_back(placements[i].axis);
  }
}

// The number of equal placements at the front.
size_t CommonFront(const Placements& a, const Placements& b) {
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// The placements of a layout by dimension, in order, and its partial axes.
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

  // Makes an axis replicated. False if it is not the last of its dimension.
  bool Take(const std::string& axis) {
    std::erase(partial, axis);
    for (Placements& dim : dims) {
      if (!dim.empty() && dim.back().axis == axis) dim.pop_back();
      for (const Placement& placement : dim) {
        if (placement.axis == axis) return false;
      }
    }
    return true;
  }

  std::vector<Placements> dims;
  Axes partial = {};
};

// The placement of `axis` on a dimension, with the target's rule if the target
// places it there too.
Placement PlacementOf(const std::string& axis, size_t dim,
                      const State& target) {
  for (const Placement& placement : target.dims[dim]) {
    if (placement.axis == axis) return placement;
  }
  return {.axis = axis, .dim = static_cast<int>(dim)};
}

// States that may follow `here` on the way to `target`; some may be invalid or
// more than one step away.
std::vector<State> Candidates(const State& here, const State& target,
                              const Axes& axes) {
  std::vector<State> states = {target};
  for (const std::string& axis : axes) {
    State without = here;
    if (!without.Take(axis)) continue;
    states.push_back(without);
    for (size_t dim = 0; dim < here.dims.size(); ++dim) {
      states.push_back(without);
      states.back().dims[dim].push_back(PlacementOf(axis, dim, target));
    }
    if (!Contains(target.partial, axis)) continue;
    states.push_back(without);
    states.back().partial.push_back(axis);
  }
  Axes sharded;  // In the target.
  for (size_t dim = 0; dim < here.dims.size(); ++dim) {
    Axes of_dim;
    AppendAxes(target.dims[dim], 0, of_dim);
    sharded.insert(sharded.end(), of_dim.begin(), of_dim.end());
    states.push_back(here);
    states.back().dims[dim] = target.dims[dim];
    states.back().partial = Difference(here.partial, of_dim);
    states.push_back(here);
    states.back().dims[dim].resize(
        CommonFront(here.dims[dim], target.dims[dim]));
  }
  states.push_back(target);
  states.back().partial = here.partial;
  const Axes reducible = Difference(here.partial, target.partial);
  for (const Axes& reduced : {reducible, Difference(reducible, sharded)}) {
    states.push_back(here);
    states.back().partial = Difference(here.partial, reduced);
  }
  return states;
}

// The step from one layout to another, if one is enough.
std::optional<RedistributionStep> StepBetween(const ShardedLayout& from,
                                              const ShardedLayout& to) {
  const State before(from), after(to);
  const Axes reduced = Difference(before.partial, after.partial);
  const Axes padded = Difference(after.partial, before.partial);
  // The axes behind those that each dimension keeps.
  Axes gathered, placed;
  for (size_t dim = 0; dim < before.dims.size(); ++dim) {
    const size_t kept = CommonFront(before.dims[dim], after.dims[dim]);
    AppendAxes(before.dims[dim], kept, gathered);
    AppendAxes(after.dims[dim], kept, placed);
  }
  if (!padded.empty()) {
    if (padded.size() > 1 || !reduced.empty() || !placed.empty() ||
        (!gathered.empty() && gathered != padded)) {
      return std::nullopt;
    }
    return RedistributionStep{StepKind::kPad, padded, from, to};
  }
  StepKind kind = placed.empty() ? StepKind::kAllGather : StepKind::kAllToAll;
  Axes group = gathered;
  if (!reduced.empty()) {
    if (!gathered.empty()) return std::nullopt;
    if (!placed.empty() &&
        !std::is_permutation(placed.begin(), placed.end(), reduced.begin(),
                             reduced.end())) {
      return std::nullopt;
    }
    kind = placed.empty() ? StepKind::kAllReduce : StepKind::kReduceScatter;
    group = reduced;
  }
  std::erase_if(group, [&](const std::string& axis) {
    return from.mesh().SizeOf(axis)->value() == 1;
  });
  if (group.empty()) kind = StepKind::kSlice;
  return RedistributionStep{kind, group, from, to};
}

}  // namespace

std::vector<RedistributionStep> NextSteps(const ShardedLayout& from,
                                          const ShardedLayout& target) {
  std::vector<RedistributionStep> steps;
  for (const State& state :
       Candidates(State(from), State(target), AxesOfBoth(from, target))) {
    const absl::StatusOr<ShardedLayout> to =
        from.With(state.All(), EmptyShards::kAllowed);
    if (!to.ok() || *to == from) continue;
    if (auto step = StepBetween(from, *to)) steps.push_back(*std::move(step));
  }
  return steps;
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
  if (from.shape() != to.shape() || !from.IsOn(to.mesh())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "redistribution of ", from.ToString(), " on mesh ",
        topology::FormatAxes(from.mesh().axes()), " to ", to.ToString(),
        " on mesh ", topology::FormatAxes(to.mesh().axes()),
        "; give layouts of one shape and mesh"));
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
