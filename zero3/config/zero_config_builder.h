// ZeroConfigBuilder: a ZeroConfig in a chain of calls, checked at the end.
//
//   TESSERA_ASSIGN_OR_RETURN(const ZeroConfig config,
//                            ZeroConfigBuilder()
//                                .Stage(2)
//                                .CpuBudget(ByteSize(int64_t{64} << 30))
//                                .Strategy(Strategy::kBalanced)
//                                .Build());
//
// What is not set keeps its default, or its value in the configuration that the
// builder begins with.
#ifndef TESSERA_ZERO3_CONFIG_ZERO_CONFIG_BUILDER_H_
#define TESSERA_ZERO3_CONFIG_ZERO_CONFIG_BUILDER_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "zero3/config/zero_config.h"

namespace tessera::zero3 {

class ZeroConfigBuilder {
  using B = ZeroConfigBuilder;

 public:
  ZeroConfigBuilder() = default;
  explicit ZeroConfigBuilder(ZeroConfig config) : config_(std::move(config)) {}

  B& Stage(int64_t value) { return Set(&ZeroConfig::stage, value); }
  B& Layout(zero3::LayoutKind value) { return Set(&ZeroConfig::layout, value); }
  B& Alignment(int64_t value) { return Set(&ZeroConfig::alignment, value); }
  B& OffloadParameters(bool value) {
    return Set(&ZeroConfig::offload_parameters, value);
  }
  B& OffloadGradients(bool value) {
    return Set(&ZeroConfig::offload_gradients, value);
  }
  B& OffloadOptimizer(bool value) {
    return Set(&ZeroConfig::offload_optimizer, value);
  }
  B& CpuBudget(ByteSize value) { return Set(&ZeroConfig::cpu_budget, value); }
  B& DeviceParameterBudget(ByteSize value) {
    return Set(&ZeroConfig::device_parameter_budget, value);
  }
  B& SwapDirectory(std::string value) {
    return Set(&ZeroConfig::swap_directory, std::move(value));
  }
  B& Compression(zero3::Compression value) {
    return Set(&ZeroConfig::compression, value);
  }
  B& Strategy(zero3::Strategy value) {
    return Set(&ZeroConfig::strategy, value);
  }
  B& PrefetchBuffer(int64_t value) {
    return Set(&ZeroConfig::prefetch_buffer, value);
  }
  B& AsyncPrefetch(bool value) {
    return Set(&ZeroConfig::async_prefetch, value);
  }
  B& Overlap(bool value) { return Set(&ZeroConfig::overlap, value); }
  B& PinMemory(bool value) { return Set(&ZeroConfig::pin_memory, value); }
  B& ReduceBucketSize(ByteSize value) {
    return Set(&ZeroConfig::reduce_bucket_size, value);
  }
  B& ParameterPersistenceThreshold(int64_t value) {
    return Set(&ZeroConfig::parameter_persistence_threshold, value);
  }
  B& MaxLiveParameters(int64_t value) {
    return Set(&ZeroConfig::max_live_parameters, value);
  }
  B& MaxReuseDistance(int64_t value) {
    return Set(&ZeroConfig::max_reuse_distance, value);
  }
  B& AllowUnusedParameters(bool value) {
    return Set(&ZeroConfig::allow_unused_parameters, value);
  }
  B& GradientAccumulationSteps(int64_t value) {
    return Set(&ZeroConfig::gradient_accumulation_steps, value);
  }
  B& GradientType(zero3::GradientType value) {
    return Set(&ZeroConfig::gradient_type, value);
  }
  B& GradientClipping(double value) {
    return Set(&ZeroConfig::gradient_clipping, value);
  }
  B& LossScale(double value) { return Set(&ZeroConfig::loss_scale, value); }
  B& InitialScalePower(int64_t value) {
    return Set(&ZeroConfig::initial_scale_power, value);
  }
  B& LossScaleWindow(int64_t value) {
    return Set(&ZeroConfig::loss_scale_window, value);
  }
  B& Hysteresis(int64_t value) { return Set(&ZeroConfig::hysteresis, value); }
  B& MinLossScale(double value) {
    return Set(&ZeroConfig::min_loss_scale, value);
  }
  // All of OffloadParameters, OffloadGradients and OffloadOptimizer.
  B& OffloadAll(bool value) {
    return OffloadParameters(value).OffloadGradients(value).OffloadOptimizer(
        value);
  }

  // InvalidArgument with all problems, as ZeroConfig::Validate.
  absl::StatusOr<ZeroConfig> Build() const {
    TESSERA_RETURN_IF_ERROR(config_.Validate());
    return config_;
  }

 private:
  template <typename T>
  B& Set(T ZeroConfig::*field, T value) {
    config_.*field = std::move(value);
    return *this;
  }

  ZeroConfig config_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CONFIG_ZERO_CONFIG_BUILDER_H_
