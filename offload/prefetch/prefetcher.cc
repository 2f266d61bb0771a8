#include "offload/prefetch/prefetcher.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "offload/prefetch/prefetch_plan.h"

namespace tessera::offload {

void StepRecorder::Begin(std::string_view key, int64_t bytes, int64_t now_ns,
                         bool overwrite) {
  if (!order_.empty()) {
    order_.back().compute_ns = std::max<int64_t>(asked_ns_ - began_ns_, 0);
  }
  open_.try_emplace(std::string(key)).first->second.push_back(order_.size());
  order_.push_back(
      {.key = std::string(key), .bytes = bytes, .overwrite = overwrite});
  began_ns_ = now_ns;
}

void StepRecorder::End(std::string_view key, bool dirty) {
  const auto open = open_.find(key);
  if (open == open_.end()) return;
  const size_t use = open->second.back();
  open->second.pop_back();
  if (open->second.empty()) open_.erase(open);
  order_[use].dirty = dirty;
  order_[use].held = static_cast<int64_t>(order_.size() - 1 - use);
}

std::vector<BlockUse> StepRecorder::Take(int64_t now_ns) {
  if (!order_.empty()) {
    order_.back().compute_ns = std::max<int64_t>(now_ns - began_ns_, 0);
  }
  open_.clear();
  return std::exchange(order_, {});
}

namespace {

// The bandwidth before the first measurement: one byte per nanosecond.
constexpr int64_t kNominalSpeed = 1'000'000'000;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t Speed(int64_t bytes, int64_t ns) {
  if (bytes <= 0 || ns <= 0) return 0;
  return std::max<int64_t>(
      1, static_cast<int64_t>(static_cast<double>(bytes) * 1e9 /
                              static_cast<double>(ns)));
}

absl::Status CheckOptions(const PrefetchOptions& options) {
  if (options.budget > 0 && options.resource != nullptr &&
      IsHostAccessible(options.resource->kind()) && options.most_loads > 0 &&
      options.most_stores > 0 && options.threads > 0 &&
      options.threads <= 256 && options.load_bytes_per_second >= 0 &&
      options.store_bytes_per_second >= 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "prefetch options: budget ", options.budget, ", resource ",
      options.resource == nullptr ? "none"
                                  : MemoryKindName(options.resource->kind()),
      ", most loads ", options.most_loads, ", most stores ",
      options.most_stores, ", threads ", options.threads, ", bandwidths ",
      options.load_bytes_per_second, " and ", options.store_bytes_per_second,
      "; numbers must be above 0, threads at most 256, bandwidths may be 0, "
      "and "
      "the CPU must reach the memory"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Prefetcher>> Prefetcher::Create(
    MemoryTier& far, PrefetchOptions options) {
  TESSERA_RETURN_IF_ERROR(CheckOptions(options));
  Reservation room;
  if (options.accounting != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(
        room, Accounting::Reserve(options.accounting, "prefetch",
                                  options.budget, Purpose::kBuffers));
  }
  return std::unique_ptr<Prefetcher>(
      new Prefetcher(far, std::move(options), std::move(room)));
}

Prefetcher::Prefetcher(MemoryTier& far, PrefetchOptions options,
                       Reservation room)
    : far_(far),
      options_(std::move(options)),
      room_(std::move(room)),
      near_(std::make_shared<NearMemory>(
          far, NearMemory::Options{.budget = options_.budget,
                                   .resource = options_.resource,
                                   .device = options_.device,
                                   .most_loads = options_.most_loads,
                                   .most_stores = options_.most_stores,
                                   .threads = options_.threads,
                                   .grows = options_.grows,
                                   .accounting = options_.accounting})) {
  load_speed_ = options_.load_bytes_per_second;
  store_speed_ = options_.store_bytes_per_second;
  near_->Open();
}

Prefetcher::~Prefetcher() { near_->Close(); }

absl::Status Prefetcher::BeginStep() { return Start(recorded_, false); }

absl::Status Prefetcher::BeginStep(std::span<const std::string> order) {
  std::vector<BlockUse> uses;
  for (const std::string& key : order) uses.push_back({.key = key});
  return Start(std::move(uses), true);
}

absl::Status Prefetcher::Start(std::vector<BlockUse> order, bool given) {
  if (step_.has_value()) {
    return absl::FailedPreconditionError(
        "a step is in progress: call EndStep before the next BeginStep");
  }
  Step step;
  step.near = near_->Blocks();
  std::optional<Replacement> replacement;
  if (options_.prefetch && !order.empty()) {
    absl::StatusOr<PrefetchPlan> plan = MakePlan(std::move(order));
    if (!plan.ok() && given) return plan.status();
    step.report.plan_status = plan.status();
    step.report.planned = plan.ok();
    if (plan.ok()) {
      if (load_speed_ > 0) step.report.expected_ns = plan->step_ns();
      for (const BlockUse& use : plan->input().order) {
        step.order.push_back(use.key);
      }
      replacement = plan->replacement();
    }
  }
  step.before = near_->traffic();
  step.began_ns = NowNs();
  step_ = std::move(step);
  recorder_.Take(0);
  near_->Follow(std::move(replacement));
  return absl::OkStatus();
}

// Reads the current sizes from the tier.
absl::StatusOr<PrefetchPlan> Prefetcher::MakePlan(
    std::vector<BlockUse> order) const {
  bool timed = false;
  int64_t largest = 1;
  for (BlockUse& use : order) {
    TESSERA_ASSIGN_OR_RETURN(const BlockStat stat, far_.Stat(use.key));
    use.bytes = stat.bytes;
    largest = std::max(largest, stat.bytes);
    timed |= use.compute_ns > 0;
  }
  if (!timed) {
    // No times are known: assumes that compute takes as long as loads.
    for (BlockUse& use : order) use.compute_ns = use.bytes;
  }
  const bool measured = timed && load_speed_ > 0;
  const int64_t load = measured ? load_speed_ : kNominalSpeed;
  return PrefetchPlan::Create(
      {.order = std::move(order),
       .budget = near_->budget(),
       .load_bytes_per_second = load,
       .store_bytes_per_second =
           measured && store_speed_ > 0 ? store_speed_ : load,
       .near = near_->Blocks(),
       // One more than the depth, so that the depth can grow.
       .least_spare = std::min<int64_t>(
           near_->traffic().load_depth + 1,
           std::max<int64_t>(near_->budget() / largest, 2) - 2)});
}

int64_t Prefetcher::Locate(std::string_view key) const {
  const auto from =
      step_->order.begin() + static_cast<std::ptrdiff_t>(step_->cursor);
  const auto found = std::find(from, step_->order.end(), key);
  return found == step_->order.end() ? -1 : found - step_->order.begin();
}

void Prefetcher::Announce(std::string_view key) {
  if (options_.prefetch) near_->Announce(key);
}

absl::StatusOr<std::span<std::byte>> Prefetcher::Use(std::string_view key,
                                                     Access access) {
  const bool overwrite = access == Access::kOverwrite;
  if (!step_.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(const NearMemory::Acquired block,
                             near_->Acquire(key, -1, overwrite));
    return block.bytes;
  }
  const int64_t asked = NowNs();
  recorder_.Ask(asked);
  const int64_t position = Locate(key);
  absl::StatusOr<NearMemory::Acquired> block =
      near_->Acquire(key, position, overwrite);
  const int64_t there = NowNs();
  StepReport& report = step_->report;
  report.stall_ns += there - asked;
  if (!block.ok()) return block.status();
  ++report.uses;
  report.hits += block->found == NearMemory::Found::kNear;
  report.late += block->found == NearMemory::Found::kOnTheWay;
  report.missing += block->found == NearMemory::Found::kMissing;
  if (report.planned && position != static_cast<int64_t>(step_->cursor)) {
    ++report.deviations;
  }
  if (position >= 0) step_->cursor = static_cast<size_t>(position) + 1;
  recorder_.Begin(key, static_cast<int64_t>(block->bytes.size()), there,
                  overwrite);
  return block->bytes;
}

absl::Status Prefetcher::Done(std::string_view key, bool dirty,
                              Event last_use) {
  TESSERA_RETURN_IF_ERROR(near_->Release(key, dirty, std::move(last_use)));
  recorder_.End(key, dirty);
  return absl::OkStatus();
}

absl::StatusOr<StepReport> Prefetcher::EndStep() {
  if (!step_.has_value()) {
    return absl::FailedPreconditionError(
        "no step is in progress: call BeginStep first");
  }
  const std::vector<std::string> in_use = near_->InUse();
  if (!in_use.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the step cannot end: ", in_use.size(),
                     " blocks are in use, the first is ",
                     QuoteKey(in_use.front()), ". Call Done for each"));
  }
  const int64_t now = NowNs();
  const NearMemory::Traffic traffic = near_->traffic();
  recorded_ = recorder_.Take(now);
  Measure(traffic);
  near_->Follow(std::nullopt);
  StepReport report = std::move(step_->report);
  for (const BlockUse& use : recorded_) report.compute_ns += use.compute_ns;
  report.deviations += static_cast<int64_t>(step_->order.size()) -
                       static_cast<int64_t>(step_->cursor);
  report.bytes_loaded = traffic.bytes_loaded - step_->before.bytes_loaded;
  report.bytes_stored = traffic.bytes_stored - step_->before.bytes_stored;
  report.step_ns = now - step_->began_ns;
  // Bandwidths are averages of steps: parts of this one may have been faster.
  report.bound_ns = std::min(Bound(recorded_), report.step_ns);
  report.load_bytes_per_second = load_speed_;
  report.store_bytes_per_second = store_speed_;
  report.load_depth = traffic.load_depth;
  report.store_depth = traffic.store_depth;
  report.store_status = near_->store_status();
  step_.reset();
  return report;
}

void Prefetcher::Measure(const NearMemory::Traffic& now) {
  const NearMemory::Traffic& before = step_->before;
  if (options_.load_bytes_per_second == 0) {
    load_speed_ =
        std::max(load_speed_, Speed(now.bytes_loaded - before.bytes_loaded,
                                    now.load_busy_ns - before.load_busy_ns));
  }
  if (options_.store_bytes_per_second == 0) {
    store_speed_ =
        std::max(store_speed_, Speed(now.bytes_stored - before.bytes_stored,
                                     now.store_busy_ns - before.store_busy_ns));
  }
}

// Without a bandwidth, and for uses that no plan supports, returns only the
// time of the computes.
int64_t Prefetcher::Bound(const std::vector<BlockUse>& order) const {
  const absl::StatusOr<int64_t> bound =
      StepBound(order, near_->budget(), step_->near,
                load_speed_ > 0 ? load_speed_ : kNominalSpeed);
  if (load_speed_ > 0 && bound.ok()) return *bound;
  int64_t compute = 0;
  for (const BlockUse& use : order) compute += use.compute_ns;
  return compute;
}

absl::Status Prefetcher::Flush() { return near_->Flush(); }

absl::Status Prefetcher::Invalidate(std::string_view key) {
  return near_->Forget(key);
}

}  // namespace tessera::offload
