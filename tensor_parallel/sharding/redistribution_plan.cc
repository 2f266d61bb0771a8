#include "tensor_parallel/sharding/redistribution_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "collectives/reduction/reduction.h"
#include "tensor_parallel/sharding/next_steps.h"

namespace tessera::tensor_parallel {
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
      // A copy: what follows adds to the map.
      const ShardSpec spec = reached_.at(key).spec;
      TESSERA_RETURN_IF_ERROR(Expand(key, cost, spec, axes));
    }
    return absl::InternalError(absl::StrCat("no way from ", from.ToString(),
                                            " to ", target_.ToString()));
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
  // A local copy is worth avoiding where nothing else tells plans apart.
  if (IsLocal(step.kind)) return 1;
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<topology::Rank> ranks,
      Representatives(mesh, AxesOfBoth(step.from, step.to)));
  int64_t most = 0;
  std::set<topology::Rank> counted;
  for (const topology::Rank rank : ranks) {
    if (counted.count(rank) > 0) continue;
    TESSERA_ASSIGN_OR_RETURN(StepGroup group, GroupOf(mesh, shape, step, rank));
    // The whole group at once: its shards are the most of the work.
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
