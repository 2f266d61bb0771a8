#include "zero3/state/shard_prefetch.h"

#include <algorithm>

#include "base/status_macros.h"
#include "offload/prefetch/prefetcher.h"

namespace tessera::zero3 {

ShardPrefetch::ShardPrefetch(const Options& options) : options_(options) {}

ShardPrefetch::~ShardPrefetch() = default;

absl::StatusOr<offload::Prefetcher*> ShardPrefetch::For(
    offload::MemoryTier& tier) {
  std::unique_ptr<offload::Prefetcher>& prefetcher = prefetchers_[&tier];
  if (prefetcher == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(
        prefetcher,
        offload::Prefetcher::Create(
            tier, {.budget = std::max<int64_t>(options_.near_bytes, 1),
                   .grows = true,
                   .resource = options_.device.memory,
                   .accounting = options_.device.accounting,
                   .prefetch = options_.reads_ahead}));
    if (in_step_) TESSERA_RETURN_IF_ERROR(prefetcher->BeginStep());
  }
  return prefetcher.get();
}

absl::Status ShardPrefetch::BeginStep() {
  if (in_step_) return absl::OkStatus();
  in_step_ = true;
  for (const auto& [tier, prefetcher] : prefetchers_) {
    if (prefetcher == nullptr) continue;
    TESSERA_RETURN_IF_ERROR(prefetcher->BeginStep());
  }
  return absl::OkStatus();
}

// Waits for different tiers add up; of their bounds the largest holds.
absl::StatusOr<ShardTraffic> ShardPrefetch::EndStep() {
  ShardTraffic traffic;
  if (!in_step_) return traffic;
  for (const auto& [tier, prefetcher] : prefetchers_) {
    if (prefetcher == nullptr) continue;
    TESSERA_ASSIGN_OR_RETURN(const offload::StepReport report,
                             prefetcher->EndStep());
    traffic.bytes_read += report.bytes_loaded;
    traffic.bytes_written += report.bytes_stored;
    traffic.stall_ns += report.stall_ns;
    traffic.least_stall_ns =
        std::max(traffic.least_stall_ns, report.least_stall_ns());
    traffic.near_bytes += prefetcher->budget();
  }
  in_step_ = false;
  return traffic;
}

}  // namespace tessera::zero3
