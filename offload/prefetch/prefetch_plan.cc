#include "offload/prefetch/prefetch_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "offload/prefetch/replacement.h"

namespace tessera::offload {

namespace {

constexpr size_t kLongestWindow = 2048;

bool OneSize(const Replacement& replacement) {
  int64_t size = 0;
  for (const Replacement::Block& block : replacement.blocks()) {
    if (block.bytes == 0) continue;
    if (size != 0 && block.bytes != size) return false;
    size = block.bytes;
  }
  return true;
}

std::vector<int64_t> LoadedUpTo(const Replacement& replacement) {
  std::vector<int64_t> loaded;
  int64_t sum = 0;
  for (const Replacement::Step& step : replacement.steps()) {
    if (step.load) sum += replacement.blocks()[step.block].bytes;
    loaded.push_back(sum);
  }
  return loaded;
}

// Counts each block once, unless it was near or its first use overwrites it.
std::vector<int64_t> FirstLoads(std::span<const BlockUse> order,
                                const Replacement& replacement,
                                std::span<const NearBlock> near) {
  // The blocks that are near at the start are numbered first.
  std::vector<bool> seen(replacement.blocks().size(), false);
  std::fill_n(seen.begin(), near.size(), true);
  std::vector<int64_t> loaded;
  int64_t sum = 0;
  const std::vector<Replacement::Step>& steps = replacement.steps();
  for (size_t use = 0; use < steps.size(); ++use) {
    const size_t block = steps[use].block;
    if (!seen[block] && !order[use].overwrite) {
      sum += replacement.blocks()[block].bytes;
    }
    seen[block] = true;
    loaded.push_back(sum);
  }
  return loaded;
}

// Raises bounds[k] to bounds[j] + (bytes of the block of j, and of the
// different others whose first use in j + 1..k reads them) - budget.
void RaiseByWindows(std::span<const BlockUse> order,
                    const Replacement& replacement, int64_t budget,
                    std::vector<int64_t>& bounds) {
  struct Counted {
    size_t end = std::numeric_limits<size_t>::max();  // of the window
    int64_t bytes = 0;
  };
  const std::vector<Replacement::Step>& steps = replacement.steps();
  std::vector<Counted> counted(replacement.blocks().size());
  for (size_t k = 0; k < steps.size(); ++k) {
    if (k > 0) bounds[k] = std::max(bounds[k], bounds[k - 1]);
    int64_t bytes = 0;
    const size_t first = k - std::min(k, kLongestWindow);
    for (size_t j = k + 1; j-- > first;) {
      Counted& of_block = counted[steps[j].block];
      if (of_block.end != k) of_block = {.end = k, .bytes = 0};
      const int64_t size = replacement.blocks()[steps[j].block].bytes;
      bytes -= of_block.bytes;
      if (j < k) {
        bounds[k] = std::max(bounds[k], bounds[j] + bytes + size - budget);
      }
      of_block.bytes = order[j].overwrite ? 0 : size;
      bytes += of_block.bytes;
    }
  }
}

}  // namespace

int64_t TransferNs(int64_t bytes, int64_t bytes_per_second) {
  const __int128 ns =
      (static_cast<__int128>(bytes) * 1'000'000'000 + bytes_per_second - 1) /
      bytes_per_second;
  return static_cast<int64_t>(
      std::min<__int128>(ns, std::numeric_limits<int64_t>::max()));
}

absl::StatusOr<std::vector<int64_t>> LeastBytesLoaded(
    std::span<const BlockUse> order, int64_t budget,
    std::span<const NearBlock> near) {
  TESSERA_ASSIGN_OR_RETURN(const Replacement replacement,
                           Replacement::Create(order, budget, near));
  if (OneSize(replacement)) return LoadedUpTo(replacement);
  std::vector<int64_t> bounds = FirstLoads(order, replacement, near);
  RaiseByWindows(order, replacement, budget, bounds);
  return bounds;
}

absl::StatusOr<int64_t> StepBound(std::span<const BlockUse> order,
                                  int64_t budget,
                                  std::span<const NearBlock> near,
                                  int64_t load_bytes_per_second) {
  if (load_bytes_per_second <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("loads at ", load_bytes_per_second,
                     " bytes a second; a bandwidth is above 0"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> loaded,
                           LeastBytesLoaded(order, budget, near));
  int64_t compute = 0;
  int64_t bound = 0;
  for (size_t k = order.size(); k-- > 0;) {
    compute += order[k].compute_ns;
    bound =
        std::max(bound, TransferNs(loaded[k], load_bytes_per_second) + compute);
  }
  return bound;
}

namespace {

constexpr int64_t kSpares[] = {0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};

// Limits sums of a step to well below 2^63.
absl::Status CheckTimes(const PrefetchPlan::Input& input) {
  if (input.load_bytes_per_second <= 0 || input.store_bytes_per_second <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("loads at ", input.load_bytes_per_second,
                     " and stores at ", input.store_bytes_per_second,
                     " bytes a second; bandwidths are above 0"));
  }
  constexpr auto kMost =
      static_cast<double>(std::numeric_limits<int64_t>::max() / 4);
  double bytes = 0, ns = 0;
  for (const BlockUse& use : input.order) {
    bytes += static_cast<double>(use.bytes);
    ns += static_cast<double>(use.compute_ns);
  }
  for (const NearBlock& block : input.near) {
    bytes += static_cast<double>(block.bytes);
  }
  ns += bytes * 1e9 / static_cast<double>(input.load_bytes_per_second);
  ns += bytes * 1e9 / static_cast<double>(input.store_bytes_per_second);
  if (bytes < kMost && ns < kMost) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a step of ", bytes, " bytes and ", ns,
      " ns is too long to plan; use realistic bandwidths or fewer uses"));
}

}  // namespace

class PrefetchPlan::Timeline {
 public:
  Timeline(const Input& input, const Replacement& replacement)
      : order_(input.order),
        load_speed_(input.load_bytes_per_second),
        store_speed_(input.store_bytes_per_second),
        replacement_(replacement),
        loaded_(replacement.blocks().size()),
        stored_(replacement.blocks().size()) {
    for (const Replacement::Step& step : replacement_.steps()) {
      for (const Replacement::Eviction& e : step.evict) {
        if (e.store) to_store_[FreeAfter(e.stored_after)].push_back(e);
      }
    }
  }

  void Run() {
    Store(-1);
    for (size_t use = 0; use < order_.size(); ++use) {
      const Replacement::Step& step = replacement_.steps()[use];
      if (step.load) Load(use, step);
      const int64_t start = std::max(
          {step_ns(), loaded_[step.block], step.load ? 0 : RoomFor(step)});
      if (!step.load) room_free_ = std::max(room_free_, RoomFor(step));
      computes_.push_back({start, start + order_[use].compute_ns});
      Store(static_cast<int64_t>(use));
    }
  }

  int64_t step_ns() const {
    return computes_.empty() ? 0 : computes_.back().end_ns;
  }

  void MoveInto(PrefetchPlan& plan) && {
    plan.computes_ = std::move(computes_);
    plan.loads_ = std::move(loads_);
    plan.stores_ = std::move(stores_);
  }

 private:
  // The use after which the block changed by `use` is no longer in use.
  int64_t FreeAfter(int64_t use) const {
    if (use < 0) return -1;
    const auto last = static_cast<int64_t>(order_.size()) - 1;
    const int64_t held = order_[static_cast<size_t>(use)].held;
    return held >= last - use ? last : use + held;
  }

  int64_t EndOf(int64_t use) const {
    return use < 0 ? 0 : computes_[static_cast<size_t>(use)].end_ns;
  }

  // When the victims of the step are evicted.
  int64_t RoomFor(const Replacement::Step& step) const {
    int64_t start = 0;
    for (const Replacement::Eviction& e : step.evict) {
      start = std::max(start, EndOf(e.after));
      if (e.store) start = std::max(start, stored_[e.block]);
    }
    return start;
  }

  void Load(size_t use, const Replacement::Step& step) {
    const int64_t start = std::max({load_free_, room_free_, RoomFor(step)});
    load_free_ = start + TransferNs(replacement_.blocks()[step.block].bytes,
                                    load_speed_);
    loaded_[step.block] = load_free_;
    loads_.push_back(
        {static_cast<int64_t>(use), step.block, {start, load_free_}});
  }

  void Store(int64_t use) {
    const auto found = to_store_.find(use);
    if (found == to_store_.end()) return;
    for (const Replacement::Eviction& e : found->second) {
      const int64_t start = std::max(store_free_, EndOf(use));
      store_free_ = start + TransferNs(replacement_.blocks()[e.block].bytes,
                                       store_speed_);
      stored_[e.block] = store_free_;
      stores_.push_back({e.stored_after, e.block, {start, store_free_}});
    }
  }

  const std::vector<BlockUse>& order_;
  const int64_t load_speed_;
  const int64_t store_speed_;
  const Replacement& replacement_;
  std::map<int64_t, std::vector<Replacement::Eviction>> to_store_;
  std::vector<int64_t> loaded_;  // block -> end of its latest load
  std::vector<int64_t> stored_;
  int64_t load_free_ = 0;
  int64_t room_free_ = 0;  // when victims of overwriting uses are evicted
  int64_t store_free_ = 0;
  std::vector<Span> computes_;
  std::vector<Transfer> loads_;
  std::vector<Transfer> stores_;
};

absl::StatusOr<PrefetchPlan> PrefetchPlan::Create(Input input) {
  TESSERA_RETURN_IF_ERROR(CheckTimes(input));
  PrefetchPlan best;
  TESSERA_ASSIGN_OR_RETURN(best.bound_ns_,
                           StepBound(input.order, input.budget, input.near,
                                     input.load_bytes_per_second));
  best.input_ = std::move(input);
  const int64_t least = best.input_.least_spare;
  std::vector<int64_t> spares = {least};
  for (const int64_t spare : kSpares) {
    if (spare > least &&
        spare < static_cast<int64_t>(best.input_.order.size())) {
      spares.push_back(spare);
    }
  }
  for (const int64_t spare : spares) {
    TESSERA_ASSIGN_OR_RETURN(
        Replacement replacement,
        Replacement::Create(best.input_.order, best.input_.budget,
                            best.input_.near, spare));
    Timeline timeline(best.input_, replacement);
    timeline.Run();
    if (spare == least ||
        std::pair(timeline.step_ns(), replacement.bytes_loaded()) <
            std::pair(best.step_ns(), best.replacement_.bytes_loaded())) {
      std::move(timeline).MoveInto(best);
      best.replacement_ = std::move(replacement);
      best.spare_ = spare;
    }
  }
  return best;
}

int64_t PrefetchPlan::step_ns() const {
  return computes_.empty() ? 0 : computes_.back().end_ns;
}

int64_t PrefetchPlan::compute_ns() const {
  int64_t sum = 0;
  for (const BlockUse& use : input_.order) sum += use.compute_ns;
  return sum;
}

}  // namespace tessera::offload
