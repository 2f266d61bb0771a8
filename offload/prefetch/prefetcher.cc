#include "offload/prefetch/prefetcher.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "offload/prefetch/load_bound.h"

namespace tessera::offload {

void StepRecorder::Begin(std::string_view key, int64_t bytes, int64_t now_ns,
                         bool overwrite) {
  if (!order_.empty()) {
    order_.back().compute_ns = std::max<int64_t>(asked_ns_ - began_ns_, 0);
  }
  order_.push_back(
      {.key = std::string(key), .bytes = bytes, .overwrite = overwrite});
  began_ns_ = now_ns;
}

std::vector<BlockUse> StepRecorder::Take(int64_t now_ns) {
  if (!order_.empty()) {
    order_.back().compute_ns = std::max<int64_t>(now_ns - began_ns_, 0);
  }
  return std::exchange(order_, {});
}

namespace {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

absl::Status CheckOptions(const PrefetchOptions& options) {
  if (options.budget > 0 && options.resource != nullptr &&
      IsHostAccessible(options.resource->kind()) && options.look_ahead > 0 &&
      options.most_loads > 0 && options.most_stores > 0 &&
      options.threads > 0 && options.threads <= 256 &&
      options.load_bytes_per_second >= 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "prefetch options: budget ", options.budget, ", resource ",
      options.resource == nullptr ? "none"
                                  : MemoryKindName(options.resource->kind()),
      ", look-ahead ", options.look_ahead, ", most loads ", options.most_loads,
      ", most stores ", options.most_stores, ", threads ", options.threads,
      ", bandwidth ", options.load_bytes_per_second,
      "; numbers must be above 0, threads at most 256, the bandwidth may be 0, "
      "and the CPU must reach the memory"));
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
      near_(std::make_shared<NearMemory>(far, options_)),
      load_speed_(options_.load_bytes_per_second) {}

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
  step.before = near_->traffic();
  step.began_ns = NowNs();
  if (!options_.prefetch) order.clear();
  const absl::Status followed = near_->Follow(order);
  if (!followed.ok() && given) return followed;
  step.report.plan_status = followed;
  step.report.planned = followed.ok() && !order.empty();
  step_ = std::move(step);
  recorder_.Take(0);
  return absl::OkStatus();
}

void Prefetcher::Announce(std::string_view key) {
  if (options_.prefetch) near_->Announce(key);
}

absl::StatusOr<std::span<std::byte>> Prefetcher::Use(std::string_view key,
                                                     Access access) {
  const bool overwrite = access == Access::kOverwrite;
  if (!step_.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(const NearMemory::Acquired block,
                             near_->Acquire(key, overwrite));
    return block.bytes;
  }
  const int64_t asked = NowNs();
  recorder_.Ask(asked);
  const absl::StatusOr<NearMemory::Acquired> block =
      near_->Acquire(key, overwrite);
  const int64_t there = NowNs();
  StepReport& report = step_->report;
  report.stall_ns += there - asked;
  if (!block.ok()) return block.status();
  ++report.uses;
  report.hits += block->found == NearMemory::Found::kNear;
  report.late += block->found == NearMemory::Found::kOnTheWay;
  report.missing += block->found == NearMemory::Found::kMissing;
  report.deviations += report.planned && !block->in_order;
  recorder_.Begin(key, static_cast<int64_t>(block->bytes.size()), there,
                  overwrite);
  return block->bytes;
}

absl::Status Prefetcher::Done(std::string_view key, bool dirty,
                              Event last_use) {
  return near_->Release(key, dirty, std::move(last_use));
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
  StepReport report = std::move(step_->report);
  for (const BlockUse& use : recorded_) report.compute_ns += use.compute_ns;
  report.deviations += near_->uses_left();
  TESSERA_RETURN_IF_ERROR(near_->Follow({}));
  report.bytes_loaded = traffic.bytes_loaded - step_->before.bytes_loaded;
  report.bytes_stored = traffic.bytes_stored - step_->before.bytes_stored;
  report.step_ns = now - step_->began_ns;
  // Bandwidths are averages of steps: parts of this one may have been faster.
  report.bound_ns = std::min(Bound(recorded_), report.step_ns);
  report.load_bytes_per_second = load_speed_;
  report.store_status = near_->store_status();
  step_.reset();
  return report;
}

void Prefetcher::Measure(const NearMemory::Traffic& now) {
  if (options_.load_bytes_per_second > 0) return;
  const NearMemory::Traffic& before = step_->before;
  const auto bytes =
      static_cast<double>(now.bytes_loaded - before.bytes_loaded);
  const auto ns = static_cast<double>(now.load_busy_ns - before.load_busy_ns);
  if (bytes <= 0 || ns <= 0) return;
  load_speed_ = std::max(
      {load_speed_, int64_t{1}, static_cast<int64_t>(bytes * 1e9 / ns)});
}

// Without a bandwidth, returns only the time of the computes.
int64_t Prefetcher::Bound(const std::vector<BlockUse>& order) const {
  if (load_speed_ > 0) {
    return StepBound(order, near_->budget(), step_->near, load_speed_);
  }
  int64_t compute = 0;
  for (const BlockUse& use : order) compute += use.compute_ns;
  return compute;
}

absl::Status Prefetcher::Flush() { return near_->Flush(); }

absl::Status Prefetcher::Invalidate(std::string_view key) {
  return near_->Forget(key);
}

}  // namespace tessera::offload
