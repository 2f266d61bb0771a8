#include "zero3/estimate/timeline/step_timeline.h"

#include "zero3/layout/near_bytes.h"

namespace tessera::zero3 {
namespace {

size_t IndexOf(ParameterId id) { return static_cast<size_t>(id.value()); }

std::vector<DType> GradientTypes(const StateLayout& layout,
                                 const ZeroConfig& config) {
  std::vector<DType> dtypes;
  for (const Parameter& parameter : layout.model().all()) {
    // Buckets ask for the bytes, and whether types are the same.
    const int64_t bytes = GradientBytes(parameter, config);
    dtypes.push_back(bytes == 2   ? DType::kBF16
                     : bytes == 4 ? DType::kF32
                                  : parameter.dtype());
  }
  return dtypes;
}

GradientTimelineOptions GradientOptionsOf(const StateLayout& layout,
                                          const ZeroConfig& config,
                                          const StepRequest& request) {
  return {.dtypes = GradientTypes(layout, config),
          .bucket_bytes = config.reduce_bucket_size.bytes(),
          .rank = request.rank,
          .is_kept = config.stage < 2,
          .is_in_shards = config.stage >= 2 && request.world == 1 &&
                          !config.offload_gradients,
          .overlap = config.overlap};
}

LiveTimelineOptions LiveOptionsOf(const ZeroConfig& config, int64_t max_live) {
  return {.max_live = max_live,
          .prefetch_windows = config.async_prefetch ? 1 : 0};
}

}  // namespace

StepTimeline::StepTimeline(const StateLayout& layout, const ZeroConfig& config,
                           const StepRequest& request, const ReusePlan& plan,
                           std::span<const StateBlock> blocks)
    : layout_(layout),
      config_(config),
      request_(request),
      plan_(plan),
      blocks_(blocks),
      near_host_(NearBytesOf(blocks), meter_),
      near_file_(NearBytesOf(blocks), meter_),
      values_(StagingOf(blocks, Part::kValue)),
      gradient_shards_(StagingOf(blocks, Part::kGradient)),
      masters_(StagingOf(blocks, Part::kMaster)),
      first_(StagingOf(blocks, Part::kFirst)),
      second_(StagingOf(blocks, Part::kSecond)),
      live_(LiveOptionsOf(config, request.max_live), layout, plan, values_,
            meter_),
      gradients_(GradientOptionsOf(layout, config, request), layout,
                 gradient_shards_, meter_) {
  FindLastUses();
}

// Host memory is used in place, unless it holds encodings.
bool StepTimeline::IsStaged(const StateBlock& block) const {
  return block.tier == Tier::kFile ||
         (block.tier == Tier::kHost &&
          config_.compression != Compression::kNone);
}

// What is used in place counts as well: which tier that is shows only when
// blocks are in it.
int64_t StepTimeline::NearBytesOf(std::span<const StateBlock> blocks) const {
  std::vector<OffloadedBytes> by_id(
      static_cast<size_t>(layout_.model().count()));
  for (const StateBlock& block : blocks) {
    if (block.tier == Tier::kDevice) continue;
    OffloadedBytes& bytes = by_id[IndexOf(block.parameter)];
    const bool is_value = block.purpose == Purpose::kParameters ||
                          block.purpose == Purpose::kCopies;
    if (is_value) bytes.value += block.bytes;
    if (layout_.model()[block.parameter].trainable()) {
      bytes.update += block.bytes;
    }
  }
  std::vector<OffloadedBytes> by_slot;
  for (const Extent& extent : layout_.ExtentsOf(request_.rank)) {
    by_slot.push_back(by_id[IndexOf(extent.parameter)]);
  }
  return NearBytes(by_slot, config_.overlap ? 3 : 1,
                   config_.async_prefetch ? config_.prefetch_buffer + 1 : 1);
}

StagingTimeline StepTimeline::StagingOf(std::span<const StateBlock> blocks,
                                        Part part) {
  std::vector<StagingTimeline::Block> staged(
      static_cast<size_t>(layout_.model().count()));
  const auto part_of = [](Purpose purpose) {
    switch (purpose) {
      case Purpose::kGradients:
        return Part::kGradient;
      case Purpose::kMasterWeights:
        return Part::kMaster;
      case Purpose::kMoments:
        return Part::kFirst;
      default:
        return Part::kValue;
    }
  };
  const bool is_second = part == Part::kSecond;
  for (const StateBlock& block : blocks) {
    if (!IsStaged(block) ||
        part_of(block.purpose) != (is_second ? Part::kFirst : part)) {
      continue;
    }
    int64_t one = block.bytes;
    if (block.purpose == Purpose::kMoments) one /= request_.moments;
    if (is_second && request_.moments < 2) one = 0;
    staged[IndexOf(block.parameter)] = {one, &NearOf(block.tier)};
  }
  return StagingTimeline(std::move(staged), part == Part::kValue, meter_);
}

void StepTimeline::FindLastUses() {
  const size_t windows = request_.order.windows();
  std::vector<size_t> last(static_cast<size_t>(layout_.model().count()),
                           windows);
  for (size_t w = 0; w < windows; ++w) {
    for (ParameterId id : request_.order.window(w)) last[IndexOf(id)] = w;
  }
  last_uses_.resize(windows);
  const auto order = layout_.model().in_use_order();
  for (auto id = order.rbegin(); id != order.rend(); ++id) {
    if (!layout_.model()[*id].trainable()) continue;
    const size_t window = last[IndexOf(*id)];
    (window == windows ? unused_ : last_uses_[window]).push_back(*id);
  }
}

void StepTimeline::Run() {
  Create();
  Fill();
  for (const bool has_plan : {false, true}) RunStep(has_plan);
}

void StepTimeline::RunStep(bool has_plan) {
  if (request_.holds_gradients) AskAll();
  for (int64_t round = 0; round < request_.rounds; ++round) {
    RunRound(round, has_plan);
  }
  if (request_.holds_gradients) ReadyAll();
  gradients_.Finish();
  Measure();
  Optimize();
}

// Blocks come in their order, but first moments before second ones; what cannot
// be used in place is put as zeros.
void StepTimeline::Create() {
  for (const StateBlock& block : blocks_) {
    if (block.tier == Tier::kDevice) missing_state_ += block.bytes;
  }
  meter_.SetMissingState(missing_state_);
  for (const StateBlock& block : blocks_) {
    if (block.purpose != Purpose::kMoments) CreateBlock(block, block.bytes);
  }
  for (int64_t i = 0; i < request_.moments; ++i) {
    for (const StateBlock& block : blocks_) {
      if (block.purpose != Purpose::kMoments) continue;
      CreateBlock(block, block.bytes / request_.moments);
    }
  }
}

void StepTimeline::CreateBlock(const StateBlock& block, int64_t bytes) {
  if (block.tier == Tier::kDevice) {
    missing_state_ -= bytes;
    meter_.SetMissingState(missing_state_);
  }
  if (!IsStaged(block)) return;
  meter_.Hold(Purpose::kPrefetchBuffers, bytes);
  meter_.Hold(Purpose::kPrefetchBuffers, -bytes);
  NearOf(block.tier).Create();
}

void StepTimeline::Fill() {
  for (const Parameter& parameter : layout_.model().all()) {
    if (OwnElements(parameter.id) == 0) continue;
    for (StagingTimeline* part : {&values_, &masters_}) {
      part->Open(parameter.id);
    }
    for (StagingTimeline* part : {&values_, &masters_}) {
      part->Close(parameter.id);
    }
  }
}

void StepTimeline::RunRound(int64_t round, bool has_plan) {
  const size_t windows = request_.order.windows();
  const size_t before = static_cast<size_t>(round) * windows;
  // Gradients that are kept are made ready once.
  const bool reduces = !request_.holds_gradients &&
                       (config_.stage >= 2 || round + 1 == request_.rounds);
  for (size_t w = 0; w < windows; ++w) {
    const auto window = request_.order.window(w);
    const bool plans = has_plan && before + w < plan_.windows.size();
    plans ? live_.Acquire(before + w, window) : live_.AcquireAlone(window);
    if (reduces) UseGradients(w);
    plans ? live_.Release(before + w) : live_.ReleaseAlone(window);
  }
  if (!reduces) return;
  for (ParameterId id : unused_) gradients_.Ready(id);
}

void StepTimeline::UseGradients(size_t window) {
  const std::vector<ParameterId>& last = last_uses_[window];
  for (size_t i = last.size(); i-- > 0;) gradients_.Ask(last[i]);
  for (ParameterId id : last) gradients_.Ready(id);
}

void StepTimeline::AskAll() {
  for (const Parameter& parameter : layout_.model().all()) {
    if (parameter.trainable()) gradients_.Ask(parameter.id);
  }
}

void StepTimeline::ReadyAll() {
  const auto order = layout_.model().in_use_order();
  for (auto id = order.rbegin(); id != order.rend(); ++id) {
    if (layout_.model()[*id].trainable()) gradients_.Ready(*id);
  }
}

void StepTimeline::Measure() {
  for (const Parameter& parameter : layout_.model().all()) {
    if (!parameter.trainable() || OwnElements(parameter.id) == 0) continue;
    gradient_shards_.Open(parameter.id);
    gradient_shards_.Close(parameter.id);
  }
}

void StepTimeline::Optimize() {
  for (const Extent& extent : layout_.ExtentsOf(request_.rank)) {
    if (extent.slot == 0 || !layout_.model()[extent.parameter].trainable()) {
      continue;
    }
    StepOne(extent.parameter);
  }
}

void StepTimeline::StepOne(ParameterId id) {
  if (OwnElements(id) == 0) return;
  for (StagingTimeline* part :
       {&values_, &gradient_shards_, &masters_, &first_, &second_}) {
    part->Open(id);
  }
  for (StagingTimeline* part :
       {&values_, &gradient_shards_, &masters_, &first_, &second_}) {
    part->Close(id);
  }
}

}  // namespace tessera::zero3
