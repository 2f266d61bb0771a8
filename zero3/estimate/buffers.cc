#include "zero3/estimate/buffers.h"

#include <algorithm>
#include <vector>

namespace tessera::zero3 {
namespace {

using topology::Rank;

size_t Index(ParameterId id) { return static_cast<size_t>(id.value()); }

bool IsGathered(const StateLayout& layout, const Parameter& parameter) {
  return !layout.IsSmall(parameter.id) && parameter.elements > 0;
}

// Small parameters, the same on every rank.
int64_t ResidentBytes(const StateLayout& layout) {
  int64_t bytes = 0;
  for (const Parameter& parameter : layout.model().all()) {
    if (!layout.IsSmall(parameter.id)) continue;
    bytes +=
        layout.GatheredElements(parameter.id) * SizeInBytes(parameter.dtype());
  }
  return bytes;
}

// The slots of the parameters that are gathered, on the rank with the most.
int64_t LargestShardBytes(const StateLayout& layout) {
  // Chunks are alike on every rank.
  const bool is_even = layout.options().kind == LayoutKind::kChunks;
  int64_t largest = 0;
  for (int64_t rank = 0; rank < (is_even ? 1 : layout.ranks()); ++rank) {
    int64_t bytes = 0;
    for (const Extent& extent : layout.ExtentsOf(Rank(rank))) {
      const Parameter& parameter = layout.model()[extent.parameter];
      if (layout.IsSmall(parameter.id)) continue;
      bytes += extent.slot * SizeInBytes(parameter.dtype());
    }
    largest = std::max(largest, bytes);
  }
  return largest;
}

int64_t BucketBytes(const StateLayout& layout, const ZeroConfig& config) {
  int64_t largest = 0;
  int64_t all = 0;
  for (const Parameter& parameter : layout.model().all()) {
    if (!parameter.trainable()) continue;
    const int64_t bytes = layout.GatheredElements(parameter.id) *
                          GradientBytes(parameter, config);
    largest = std::max(largest, bytes);
    all += bytes;
  }
  const int64_t one =
      std::min(std::max(config.reduce_bucket_size.bytes(), largest), all);
  return config.overlap && one < all ? 2 * one : one;
}

// The largest sum of `sizes` over `count` successive gathers of the plan.
int64_t LargestRun(const ReusePlan& gathers, std::span<const int64_t> sizes,
                   int64_t count) {
  std::vector<int64_t> sequence;
  for (const ReusePlan::Window& window : gathers.windows) {
    for (const ParameterId id : window.gather) {
      sequence.push_back(sizes[Index(id)]);
    }
  }
  int64_t sum = 0;
  int64_t largest = 0;
  const auto run = static_cast<size_t>(count);
  for (size_t i = 0; i < sequence.size(); ++i) {
    sum += sequence[i];
    if (i >= run) sum -= sequence[i - run];
    largest = std::max(largest, sum);
  }
  return largest;
}

bool IsValue(Purpose purpose) {
  return purpose == Purpose::kParameters || purpose == Purpose::kCopies;
}

// By id, the bytes of the blocks that are offloaded to `first` or a tier
// behind it: values, or all else.
std::vector<int64_t> Offloaded(const StateLayout& layout,
                               std::span<const StateBlock> blocks, Tier first,
                               bool values) {
  std::vector<int64_t> bytes(static_cast<size_t>(layout.model().count()), 0);
  for (const StateBlock& block : blocks) {
    if (block.tier < first || IsValue(block.purpose) != values) continue;
    bytes[Index(block.parameter)] += block.bytes;
  }
  return bytes;
}

// By id, the bytes of each parameter once gathered.
std::vector<int64_t> GatheredBytes(const StateLayout& layout) {
  std::vector<int64_t> bytes;
  for (const Parameter& parameter : layout.model().all()) {
    bytes.push_back(layout.GatheredElements(parameter.id) *
                    SizeInBytes(parameter.dtype()));
  }
  return bytes;
}

}  // namespace

int64_t LiveElementLimit(const StateLayout& layout, const ZeroConfig& config) {
  int64_t widest = 1;
  for (const Parameter& parameter : layout.model().all()) {
    if (!IsGathered(layout, parameter)) continue;
    widest = std::max(widest, SizeInBytes(parameter.dtype()));
  }
  const int64_t stays =
      ResidentBytes(layout) +
      (config.offload_parameters ? 0 : LargestShardBytes(layout));
  const int64_t room = std::max<int64_t>(
      config.EffectiveDeviceParameterBudget().bytes() - stays, 0);
  return std::min(config.max_live_parameters, room / widest);
}

absl::StatusOr<ReusePlan> GatherPlan(const StateLayout& layout,
                                     const ZeroConfig& config,
                                     const UseOrder& order) {
  const bool is_whole = layout.ranks() == 1 && !config.offload_parameters;
  if (config.stage < 3 || is_whole) return ReusePlan();
  std::vector<int64_t> sizes;
  for (const Parameter& parameter : layout.model().all()) {
    sizes.push_back(IsGathered(layout, parameter)
                        ? layout.GatheredElements(parameter.id)
                        : 0);
  }
  return PlanReuse(order, sizes,
                   {.max_live = LiveElementLimit(layout, config),
                    .max_reuse_distance = config.max_reuse_distance});
}

MemoryUse BuffersOf(const StateLayout& layout, const ZeroConfig& config,
                    int64_t world, const ReusePlan& gathers,
                    std::span<const StateBlock> blocks) {
  MemoryUse use;
  use.Add(Purpose::kGatherBuffers, Tier::kDevice,
          PeakLive(gathers, GatheredBytes(layout)));
  if (config.stage >= 2 && (world > 1 || config.offload_gradients)) {
    use.Add(Purpose::kReduceBuckets, Tier::kDevice,
            BucketBytes(layout, config));
  }
  const int64_t ahead = config.async_prefetch ? config.prefetch_buffer : 1;
  const auto offloaded = Offloaded(layout, blocks, Tier::kHost, true);
  use.Add(Purpose::kPrefetchBuffers, Tier::kDevice,
          LargestRun(gathers, offloaded, ahead));
  const auto in_files = Offloaded(layout, blocks, Tier::kFile, true);
  use.Add(Purpose::kPrefetchBuffers, Tier::kHost,
          LargestRun(gathers, in_files, ahead));
  const auto of_step = Offloaded(layout, blocks, Tier::kFile, false);
  if (!of_step.empty()) {
    use.Add(Purpose::kPrefetchBuffers, Tier::kHost,
            (config.overlap ? 2 : 1) *
                *std::max_element(of_step.begin(), of_step.end()));
  }
  return use;
}

}  // namespace tessera::zero3
