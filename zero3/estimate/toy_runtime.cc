#include "zero3/estimate/toy_runtime.h"

#include <algorithm>
#include <deque>

#include "gtest/gtest.h"

namespace tessera::zero3 {

using topology::Rank;

ToyRuntime::ToyRuntime(const StateLayout& layout, const ReusePlan& gathers,
                       const ZeroConfig& config, const MemoryRequest& request,
                       Rank rank)
    : layout_(layout), gathers_(gathers), config_(config) {
  for (int64_t r = 0; r < layout.ranks(); ++r) {
    for (int64_t i = 0; i < layout.all(Rank(r)).size(); ++i) {
      const ParameterId id = layout.GlobalOf(Rank(r), i)->parameter;
      ++gathered_[id];
      if (Rank(r) == rank && ++slot_[id] == 1) order_.push_back(id);
    }
  }
  const ByteSize budget = config.cpu_budget;
  const int64_t percents[] = {90, 75, 60, 40};
  // Small budgets only: the product fits.
  host_left_ =
      budget.bytes() * percents[static_cast<int>(config.strategy)] / 100;
  PlaceValues();
  PlaceGradients();
  PlaceOptimizer(request.optimizer);
  Compute();
  Reduce(request.ranks * request.replicas);
  Step();
}

void ToyRuntime::Hold(Purpose purpose, Tier tier, int64_t bytes) {
  now_.Add(purpose, tier, bytes);
  const int64_t above = now_.At(purpose, tier) - peak_.At(purpose, tier);
  if (above > 0) peak_.Add(purpose, tier, above);
}

Tier ToyRuntime::Place(Purpose purpose, bool offload, int64_t bytes) {
  Tier tier = Tier::kDevice;
  if (offload) {
    tier = Tier::kHost;
    if (bytes > host_left_ && config_.swap_directory != "") tier = Tier::kFile;
    if (tier == Tier::kHost) host_left_ -= bytes;
  }
  Hold(purpose, tier, bytes);
  return tier;
}

void ToyRuntime::PlaceValues() {
  const auto purpose = [](const Parameter& parameter) {
    const bool is_wide =
        parameter.dtype() == DType::kF32 || parameter.dtype() == DType::kF64;
    return parameter.trainable() && !is_wide ? Purpose::kCopies
                                             : Purpose::kParameters;
  };
  for (const Parameter& parameter : layout_.model().all()) {
    if (config_.stage < 3 || IsSmall(parameter)) {
      Place(purpose(parameter), false,
            gathered_[parameter.id] * SizeInBytes(parameter.dtype()));
    }
  }
  for (const ParameterId id : order_) {
    const Parameter& parameter = layout_.model()[id];
    if (config_.stage < 3 || IsSmall(parameter)) continue;
    const int64_t bytes = slot_[id] * SizeInBytes(parameter.dtype());
    const bool offload = config_.offload_parameters;
    values_[id][Place(purpose(parameter), offload, bytes)] = bytes;
  }
}

void ToyRuntime::PlaceGradients() {
  for (const Parameter& parameter : layout_.model().all()) {
    if (config_.stage >= 2 || !parameter.trainable()) continue;
    Place(Purpose::kGradients, false,
          gathered_[parameter.id] * GradientSize(parameter));
  }
  for (const ParameterId id : order_) {
    const Parameter& parameter = layout_.model()[id];
    if (config_.stage < 2 || !parameter.trainable()) continue;
    const int64_t bytes = slot_[id] * GradientSize(parameter);
    if (Place(Purpose::kGradients, config_.offload_gradients, bytes) ==
        Tier::kFile) {
      step_in_files_[id] += bytes;
    }
  }
}

void ToyRuntime::PlaceOptimizer(const OptimizerState& optimizer) {
  const bool offload = config_.offload_optimizer;
  for (const Purpose purpose : {Purpose::kMasterWeights, Purpose::kMoments}) {
    for (const ParameterId id : order_) {
      const Parameter& parameter = layout_.model()[id];
      if (!parameter.trainable()) continue;
      int64_t bytes = 4 * slot_[id];
      if (purpose == Purpose::kMoments) {
        bytes = MomentBytes(optimizer, slot_[id]);
      } else if (SizeInBytes(parameter.dtype()) >= 4) {
        continue;
      }
      if (Place(purpose, offload, bytes) == Tier::kFile) {
        step_in_files_[id] += bytes;
      }
    }
  }
}

// Forward and backward pass: a queue of slots that were fetched ahead.
void ToyRuntime::Compute() {
  std::deque<ParameterId> to_fetch;
  for (const ReusePlan::Window& window : gathers_.windows) {
    to_fetch.insert(to_fetch.end(), window.gather.begin(), window.gather.end());
  }
  std::deque<ParameterId> fetched;
  const auto bytes = [&](ParameterId id) {
    return gathered_[id] * SizeInBytes(layout_.model()[id].dtype());
  };
  const auto buffer = [&](ParameterId id, int64_t sign) {
    for (const auto& [tier, size] : values_[id]) {
      if (tier == Tier::kDevice) continue;
      Hold(Purpose::kPrefetchBuffers, Tier::kDevice, sign * size);
      if (tier != Tier::kFile) continue;
      Hold(Purpose::kPrefetchBuffers, Tier::kHost, sign * size);
    }
  };
  const size_t ahead =
      config_.async_prefetch ? static_cast<size_t>(config_.prefetch_buffer) : 1;
  for (const ReusePlan::Window& window : gathers_.windows) {
    for (const ParameterId id : window.gather) {
      while (!to_fetch.empty() && fetched.size() < ahead) {
        fetched.push_back(to_fetch.front());
        to_fetch.pop_front();
        buffer(fetched.back(), 1);
      }
      EXPECT_EQ(fetched.front(), id);
      buffer(id, -1);
      fetched.pop_front();
      Hold(Purpose::kGatherBuffers, Tier::kDevice, bytes(id));
    }
    for (const ParameterId id : window.release) {
      Hold(Purpose::kGatherBuffers, Tier::kDevice, -bytes(id));
    }
  }
}

void ToyRuntime::Reduce(int64_t world) {
  if (config_.stage < 2 || (world == 1 && !config_.offload_gradients)) return;
  int64_t all = 0;
  int64_t capacity = config_.reduce_bucket_size.bytes();
  for (const Parameter& parameter : layout_.model().all()) {
    if (!parameter.trainable()) continue;
    const int64_t bytes = gathered_[parameter.id] * GradientSize(parameter);
    all += bytes;
    capacity = std::max(capacity, bytes);
  }
  capacity = std::min(capacity, all);
  Hold(Purpose::kReduceBuckets, Tier::kDevice, capacity);
  if (config_.overlap && all > capacity) {
    Hold(Purpose::kReduceBuckets, Tier::kDevice, capacity);
  }
}

void ToyRuntime::Step() {
  int64_t largest = 0;
  for (const auto& [id, bytes] : step_in_files_) {
    largest = std::max(largest, bytes);
  }
  // The buffers of the pass are kept for the next step. What is used of them
  // now is nothing, so they are held anew at their peak.
  const int64_t kept = peak_.At(Purpose::kPrefetchBuffers, Tier::kHost);
  Hold(Purpose::kPrefetchBuffers, Tier::kHost,
       kept + (config_.overlap ? 2 : 1) * largest);
}

}  // namespace tessera::zero3
