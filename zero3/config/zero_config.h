// ZeroConfig: how model state is partitioned and where it lives.
//
//   ZeroConfig config;            // stage 3, everything offloaded
//   config.cpu_budget = ByteSize(int64_t{64} << 30);
//   TESSERA_RETURN_IF_ERROR(config.Validate());
//   config.EffectiveHostBudget(); // 60 % of it, with strategy aggressive
//
// A plain value with the names and defaults known from DeepSpeed's "ZeRO"
// options; nothing is checked until Validate, which reports every problem at
// once. zero_config_builder.h makes one in a chain of calls,
// zero_config_json.h reads and writes it. Source of the stages: "ZeRO", arXiv
// 1910.02054.
#ifndef TESSERA_ZERO3_CONFIG_ZERO_CONFIG_H_
#define TESSERA_ZERO3_CONFIG_ZERO_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/byte_size.h"
#include "topology/config/options/config_problem.h"
#include "zero3/config/choices.h"
#include "zero3/config/strategy.h"
#include "zero3/layout/layout_options.h"

namespace tessera::zero3 {

struct ZeroConfig {
  // 0: nothing is sharded; 1: optimizer state; 2: and gradients; 3: and
  // parameters.
  int64_t stage = 3;
  // How state is cut, and the elements of which every piece has a multiple.
  LayoutKind layout = LayoutKind::kChunks;
  int64_t alignment = 1;

  // What leaves the device between uses. Parameters do so at stage 3 and
  // gradients from stage 2 on; before, they are needed whole all the time.
  bool offload_parameters = true;
  bool offload_gradients = true;
  bool offload_optimizer = true;
  // Most host memory of a rank.
  ByteSize cpu_budget{int64_t{32} << 30};
  // Most device memory of a rank for parameters: kept, gathered and resident.
  ByteSize device_parameter_budget{int64_t{2} << 30};
  // Where files go that hold what the host has no room for; empty for none.
  std::string swap_directory = {};
  Compression compression = Compression::kNone;
  Strategy strategy = Strategy::kAggressive;

  // Parameters fetched ahead of their use, and whether beside computation.
  int64_t prefetch_buffer = 16;
  bool async_prefetch = true;
  // Whether reductions run beside the backward pass.
  bool overlap = true;
  bool pin_memory = true;
  // Gradients reduced at once.
  ByteSize reduce_bucket_size{500'000'000};

  // Stage 3, in elements: parameters below the threshold stay whole on every
  // rank; as many elements may be live; a parameter is kept for its next use
  // where at most so many are used in between.
  int64_t parameter_persistence_threshold = 100'000;
  int64_t max_live_parameters = 1'000'000'000;
  int64_t max_reuse_distance = 1'000'000'000;
  // Parameters that some ranks do not use contribute zeros, instead of an
  // error.
  bool allow_unused_parameters = false;

  int64_t gradient_accumulation_steps = 1;
  GradientType gradient_type = GradientType::kParameter;
  // Largest global norm of the gradients; 0 for no clipping.
  double gradient_clipping = 0;

  // 0 for a dynamic scale: 2^initial_scale_power at first, halved after
  // `hysteresis` overflows but never below min_loss_scale, doubled after
  // loss_scale_window steps without.
  double loss_scale = 0;
  int64_t initial_scale_power = 16;
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;
  double min_loss_scale = 1;

  friend bool operator==(const ZeroConfig&, const ZeroConfig&) = default;

  // Everything that is wrong; empty where the configuration is valid.
  std::vector<topology::ConfigProblem> Problems() const;
  // OK, or InvalidArgument with one numbered line for each problem.
  absl::Status Validate() const;

  // What of each budget may be used before the strategy acts: exactly
  // floor(budget * threshold / 100).
  ByteSize EffectiveHostBudget() const;
  ByteSize EffectiveDeviceParameterBudget() const;

  // The layout of the state that is sharded over `ranks` ranks: at stage 0 of
  // one rank, and with small parameters at stage 3 only.
  LayoutOptions MakeLayoutOptions(int64_t ranks) const;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CONFIG_ZERO_CONFIG_H_
