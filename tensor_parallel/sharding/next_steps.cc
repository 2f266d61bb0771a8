#include "tensor_parallel/sharding/next_steps.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace tessera::tensor_parallel {
namespace {

using Axes = std::vector<std::string>;

bool Contains(std::span<const std::string> axes, const std::string& axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

void Append(Axes& axes, std::span<const std::string> more) {
  axes.insert(axes.end(), more.begin(), more.end());
}

// The source axes of a dimension along which ranks must exchange, when it is to
// be cut as `to`: all behind the front that both have.
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

  // One dimension, or all of them, straight to what the target has.
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

  // Where the axes that the target has there and this has not are all partial.
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

  // Returns whether all ranks then have what their group has.
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

}  // namespace tessera::tensor_parallel
