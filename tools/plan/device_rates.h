// Predicts how long a device takes for the passes of a pipeline stage.
#ifndef TESSERA_TOOLS_PLAN_DEVICE_RATES_H_
#define TESSERA_TOOLS_PLAN_DEVICE_RATES_H_

#include <cstdint>
#include <string>

#include "base/dtype/dtype.h"
#include "tools/train/predict/pipeline_plan.h"
#include "tools/train/settings/run_options.h"

namespace tessera::plan {

// The times of one micro-batch on one rank.
struct PassSeconds {
  double forward = 0;
  double attention = 0;  // Part of forward.
  double backward_input = 0;
  double backward_attention = 0;  // Part of backward_input.
  double backward_weight = 0;
};

struct GpuModel {
  double flops = 989e12;             // Peak, per second.
  double memory_bandwidth = 4.8e12;  // Bytes per second.
  int64_t multiprocessors = 132;
  // The shares of the peaks that large products and streams reach.
  double product_share = 0.72;
  double stream_share = 0.77;
  double launch_seconds = 3e-6;
};

// Example:
//
//   const auto rates = DeviceRates::Gpu({.flops = 989e12}, DType::kBF16);
//   const PassSeconds seconds = rates.SecondsOf(shapes, options);
//
// Gpu: rates depend on shapes. A matrix product is computed in tiles of 128 x
// 256, in waves of one tile per multiprocessor; a tile takes the time of its
// inner dimension plus a fixed prologue. If reading and writing the operands
// takes longer, that time counts. Attention has the published rates of cuDNN
// 9.19 on an H200 by length (cudnn-frontend, benchmark/h200_919_only_cudnn),
// and lower ones for heads of 64. Norms, activations, residuals and the loss
// take the time of their memory traffic.
//
// Flat: products and attention run at flops * efficiency; everything else takes
// no time.
class DeviceRates {
 public:
  static DeviceRates Flat(double flops, double efficiency);
  static DeviceRates Gpu(const GpuModel& gpu, DType dtype);

  PassSeconds SecondsOf(const train::StageShapes& shapes,
                        const train::RunOptions& options) const;

  // Describes the assumptions, for reports.
  std::string Describe() const;

  // The time of a product of [m, k] and [k, n].
  double ProductSeconds(int64_t m, int64_t n, int64_t k) const;
  // The time of `operations` of causal attention over sequences of `length`.
  double AttentionSeconds(double operations, int64_t length, int64_t head_size,
                          bool is_backward) const;
  // The time to read and write `bytes` in all.
  double StreamSeconds(double bytes) const;

 private:
  DeviceRates() = default;

  bool is_flat_ = false;
  double efficiency_ = 1;  // Flat only.
  GpuModel gpu_;
  DType dtype_ = DType::kBF16;
};

}  // namespace tessera::plan

#endif  // TESSERA_TOOLS_PLAN_DEVICE_RATES_H_
