#include "zero3/parameters/use/reuse_plan.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::zero3 {
namespace {

absl::Status CheckSizes(const UseOrder& order, std::span<const int64_t> sizes) {
  int64_t total = 0;
  for (const ParameterId id : order.uses()) {
    if (id.value() < 0 || id.value() >= static_cast<int64_t>(sizes.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("the order uses parameter ", id.value(),
                       ", which has no size; there are ", sizes.size()));
    }
    const int64_t size = sizes[static_cast<size_t>(id.value())];
    if (size < 0) {
      return absl::InvalidArgumentError(absl::StrCat("the size of parameter ",
                                                     id.value(), " is ", size,
                                                     "; allowed: 0 or more"));
    }
    if (__builtin_add_overflow(total, size, &total)) {
      return absl::InvalidArgumentError(
          "the uses of the step exceed 2^63-1 elements or bytes in all");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOption(std::string_view name, int64_t value) {
  if (value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, "; allowed: 0 or more"));
}

// Goes through the windows in order and keeps what is live.
class Planner {
 public:
  Planner(const UseOrder& order, std::span<const int64_t> sizes,
          const ReuseOptions& options)
      : order_(order),
        sizes_(sizes),
        options_(options),
        next_uses_(NextUses(order)),
        live_(sizes.size(), false) {
    plan_.windows.resize(order.windows());
    used_before_.push_back(0);
    for (size_t i = 0; i < order.windows(); ++i) {
      int64_t sum = used_before_.back();
      for (const ParameterId id : order.window(i)) sum += SizeOf(id);
      used_before_.push_back(sum);
    }
  }

  ReusePlan Run() && {
    for (size_t i = 0; i < order_.windows(); ++i) {
      MakeRoom(i);
      Gather(i);
      Release(i);
    }
    return std::move(plan_);
  }

 private:
  // The next use first, so that the farthest is last.
  using Kept = std::pair<int64_t, ParameterId>;

  int64_t SizeOf(ParameterId id) const {
    return sizes_[static_cast<size_t>(id.value())];
  }
  bool IsLive(ParameterId id) const {
    return live_[static_cast<size_t>(id.value())];
  }
  void Drop(ParameterId id, size_t after) {
    live_[static_cast<size_t>(id.value())] = false;
    live_size_ -= SizeOf(id);
    plan_.windows[after].release.push_back(id);
  }

  void MakeRoom(size_t window) {
    int64_t needed = 0;
    for (const ParameterId id : order_.window(window)) {
      kept_.erase({static_cast<int64_t>(window), id});
      if (!IsLive(id)) needed += SizeOf(id);
    }
    while (!kept_.empty() && live_size_ > options_.max_live - needed) {
      Drop(kept_.rbegin()->second, window - 1);
      kept_.erase(std::prev(kept_.end()));
    }
  }

  void Gather(size_t window) {
    ReusePlan::Window& planned = plan_.windows[window];
    for (const ParameterId id : order_.window(window)) {
      if (IsLive(id) || SizeOf(id) == 0) continue;
      live_[static_cast<size_t>(id.value())] = true;
      live_size_ += SizeOf(id);
      plan_.gathered += SizeOf(id);
      planned.gather.push_back(id);
    }
    planned.live = live_size_;
    plan_.peak_live = std::max(plan_.peak_live, live_size_);
  }

  void Release(size_t window) {
    for (const ParameterId id : order_.window(window)) {
      const int64_t next = next_uses_[position_++];
      if (SizeOf(id) == 0) continue;
      if (next == kNoNextUse ||
          Distance(window, next) > options_.max_reuse_distance) {
        Drop(id, window);
      } else {
        kept_.insert({next, id});
      }
    }
  }

  // What the windows between the two use.
  int64_t Distance(size_t window, int64_t next) const {
    return used_before_[static_cast<size_t>(next)] - used_before_[window + 1];
  }

  const UseOrder& order_;
  const std::span<const int64_t> sizes_;
  const ReuseOptions options_;
  const std::vector<int64_t> next_uses_;
  // The sum of the uses of all windows before each.
  std::vector<int64_t> used_before_;
  std::vector<bool> live_;
  int64_t live_size_ = 0;
  size_t position_ = 0;
  std::set<Kept> kept_;
  ReusePlan plan_;
};

}  // namespace

std::vector<int64_t> NextUses(const UseOrder& order) {
  std::vector<int64_t> next_uses(order.uses().size(), kNoNextUse);
  absl::flat_hash_map<ParameterId, int64_t> next;
  size_t position = next_uses.size();
  for (size_t i = order.windows(); i-- > 0;) {
    const auto window = order.window(i);
    for (size_t j = window.size(); j-- > 0;) {
      const auto entry = next.try_emplace(window[j], kNoNextUse).first;
      next_uses[--position] = entry->second;
      entry->second = static_cast<int64_t>(i);
    }
  }
  return next_uses;
}

absl::StatusOr<ReusePlan> PlanReuse(const UseOrder& order,
                                    std::span<const int64_t> sizes,
                                    const ReuseOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckOption("max_live", options.max_live));
  TESSERA_RETURN_IF_ERROR(
      CheckOption("max_reuse_distance", options.max_reuse_distance));
  TESSERA_RETURN_IF_ERROR(CheckSizes(order, sizes));
  return Planner(order, sizes, options).Run();
}

int64_t PeakLive(const ReusePlan& plan, std::span<const int64_t> sizes) {
  int64_t live = 0;
  int64_t peak = 0;
  for (const ReusePlan::Window& window : plan.windows) {
    for (const ParameterId id : window.gather) {
      live += sizes[static_cast<size_t>(id.value())];
    }
    peak = std::max(peak, live);
    for (const ParameterId id : window.release) {
      live -= sizes[static_cast<size_t>(id.value())];
    }
  }
  return peak;
}

}  // namespace tessera::zero3
