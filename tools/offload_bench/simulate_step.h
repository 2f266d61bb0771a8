// SimulateStep: how long a training step with offload would take on a device,
// by the timeline of an emulated one (base/device/device_timeline.h).
//
//   TESSERA_ASSIGN_OR_RETURN(const SimulatedStep step,
//                            SimulateStep({.layers = 32}, kOffloads[1]));
//   step.share();   // 0.9: takes 11 % longer than the bound.
//
// The model has equal layers of bf16 values, with f32 gradients and AdamW in
// f32, on one rank of ZeRO stage 3. The program is the real one (ShardedState
// with tiers): only the times are a model's, and the forward and backward
// functions compute nothing.
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_SIMULATE_STEP_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_SIMULATE_STEP_H_

#include <array>
#include <cstdint>
#include <ostream>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/device/device_timeline.h"
#include "tools/cli/cli.h"
#include "tools/cli/records.h"

namespace tessera::offload_bench {

struct StepModel {
  int64_t layers = 16;
  int64_t layer_parameters = 50'000'000;  // A multiple of 4 is used.
  // Forward and backward of a layer; the forward pass takes a third.
  double layer_seconds = 20e-3;
  double pcie_bytes_per_second = 50e9;      // Each way, at the same time.
  double memory_bytes_per_second = 3.7e12;  // Of the device.
  // Bytes that the optimizer's step on the host moves in a second.
  double host_bytes_per_second = 100e9;
};

// What is in the memory of the host.
struct Offload {
  std::string_view name;
  bool optimizer = false;   // Master weights and moments.
  bool parameters = false;  // Values.
  bool host_steps = false;  // The host runs the optimizer (ZeRO-Offload),
  bool early = false;       // and begins before the norm is known.
};

inline constexpr std::array<Offload, 7> kOffloads = {{
    {.name = "none"},
    {.name = "optimizer", .optimizer = true},
    {.name = "optimizer, host steps", .optimizer = true, .host_steps = true},
    {.name = "optimizer, early steps",
     .optimizer = true,
     .host_steps = true,
     .early = true},
    {.name = "parameters", .parameters = true},
    {.name = "both", .optimizer = true, .parameters = true},
    {.name = "both, host steps",
     .optimizer = true,
     .parameters = true,
     .host_steps = true},
}};

// Seconds of one step.
struct SimulatedStep {
  double elapsed = 0;  // Until all is done.
  double work = 0;     // Of the device.
  double uploads = 0;
  double downloads = 0;
  double host_optimizer = 0;  // Without what early steps save besides.

  // No order of these is faster.
  double bound() const;
  double share() const { return bound() / elapsed; }
};

// The mean over some steps, after the first ones. All numbers of the model are
// positive.
absl::StatusOr<SimulatedStep> SimulateStep(const StepModel& model,
                                           const Offload& offload);

// Prints steps as text, JSON or CSV while they are made.
class StepPrinter {
 public:
  StepPrinter(tools::OutputFormat format, std::ostream& out)
      : printer_(format, "steps", out) {}

  void Print(const Offload& offload, const SimulatedStep& step);
  void Finish() { printer_.Finish(); }

 private:
  tools::RecordPrinter printer_;
};

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_SIMULATE_STEP_H_
