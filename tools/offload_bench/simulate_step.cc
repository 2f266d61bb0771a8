#include "tools/offload_bench/simulate_step.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/device/emulated_device.h"
#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/emulated/emulated_communicator.h"
#include "collectives/in_process/in_process.h"
#include "offload/tier/accounting.h"
#include "offload/tier/host_tier.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/state/sharded_state.h"

namespace tessera::offload_bench {
namespace {

using zero3::ModelParameters;
using zero3::ParameterId;
using zero3::ShardedState;

constexpr int64_t kTensors = 4;  // Parameters of a layer.
// Elements of a parameter that are simulated, at most. Larger ones have this
// many, and all rates are lower by the same factor.
constexpr int64_t kMostElements = 8192;
// Master weight, two moments and gradient read; master weight, moments and
// bf16 value written.
constexpr double kHostStepBytes = 30;
// The time of a step that saves what it overwrites over that of another, as
// //offload/optimizer:adamw_benchmark measures it (f32 moments, one thread).
constexpr double kUndoFactor = 2.3;
constexpr int kFirstSteps = 3;
constexpr int kSteps = 4;

int64_t SimulatedElements(const StepModel& model) {
  return std::min(kMostElements, model.layer_parameters / kTensors);
}

// Real elements for each simulated one.
double ScaleOf(const StepModel& model) {
  return static_cast<double>(model.layer_parameters / kTensors) /
         static_cast<double>(SimulatedElements(model));
}

DeviceTiming TimingOf(const StepModel& model) {
  const double scale = ScaleOf(model);
  DeviceTiming timing;
  timing.upload_bytes_per_second = model.pcie_bytes_per_second / scale;
  timing.download_bytes_per_second = model.pcie_bytes_per_second / scale;
  timing.work_seconds = [model, scale](std::string_view name, size_t bytes) {
    if (name == "forward") return model.layer_seconds / 3;
    if (name == "backward") return model.layer_seconds * 2 / 3;
    return static_cast<double>(bytes) * scale / model.memory_bytes_per_second;
  };
  // The host writes the bf16 value of a parameter that it steps.
  timing.host_seconds = [=](std::string_view name, size_t bytes) {
    const double moved = name == "step a parameter" ? kHostStepBytes
                         : name == "step a parameter early"
                             ? kHostStepBytes * kUndoFactor
                             : 0;
    return moved / sizeof(BF16) * static_cast<double>(bytes) * scale /
           model.host_bytes_per_second;
  };
  return timing;
}

absl::StatusOr<ModelParameters> MakeModel(const StepModel& model) {
  ModelParameters::Builder builder;
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    for (int64_t i = 0; i < kTensors; ++i) {
      builder.Add({.name = absl::StrCat("layer", layer, ".weight", i),
                   .shape = {SimulatedElements(model)},
                   .dtype = DType::kBF16,
                   .group = layer});
    }
  }
  return builder.Build();
}

// The layer's pass, as long as the timeline says.
absl::Status RunLayer(ShardedState& state, std::span<const ParameterId> window,
                      bool backward) {
  HostFunction function = {
      .name = backward ? "backward" : "forward",
      .run = [](const DeviceAddresses&) -> absl::StatusOr<Event> {
        return Event();
      }};
  for (const ParameterId id : window) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView value, state.Value(id));
    function.accesses.push_back(ReadsFrom(value));
    if (!backward) continue;
    TESSERA_ASSIGN_OR_RETURN(const TensorView gradient, state.Gradient(id));
    function.accesses.push_back(WritesTo(gradient));
  }
  TESSERA_RETURN_IF_ERROR(state.queue().Launch(std::move(function)));
  return backward ? state.ReduceGradients(window) : absl::OkStatus();
}

// The next layer is gathered while one computes.
absl::Status RunPass(ShardedState& state, bool backward) {
  const ModelParameters& model = state.layout().model();
  const int64_t layers = model.group_count();
  const auto window = [&](int64_t i) {
    return model.group(backward ? layers - 1 - i : i);
  };
  TESSERA_RETURN_IF_ERROR(state.StartGather(window(0)));
  for (int64_t i = 0; i < layers; ++i) {
    if (i + 1 < layers) {
      TESSERA_RETURN_IF_ERROR(state.AnnounceGather(window(i + 1)));
      TESSERA_RETURN_IF_ERROR(state.StartGather(window(i + 1)));
    }
    TESSERA_RETURN_IF_ERROR(state.AwaitGather(window(i)));
    TESSERA_RETURN_IF_ERROR(RunLayer(state, window(i), backward));
    TESSERA_RETURN_IF_ERROR(state.Release(window(i)));
  }
  return absl::OkStatus();
}

absl::Status RunSteps(ShardedState& state, int steps) {
  for (int step = 0; step < steps; ++step) {
    TESSERA_RETURN_IF_ERROR(RunPass(state, /*backward=*/false));
    TESSERA_RETURN_IF_ERROR(RunPass(state, /*backward=*/true));
    TESSERA_RETURN_IF_ERROR(state.Step().status());
  }
  return absl::OkStatus();
}

}  // namespace

double SimulatedStep::bound() const {
  return std::max({work, uploads, downloads, host_optimizer});
}

absl::StatusOr<SimulatedStep> SimulateStep(const StepModel& model,
                                           const Offload& offload) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<EmulatedDevice> device,
                           EmulatedDevice::Create({.timing = TimingOf(model)}));
  TESSERA_ASSIGN_OR_RETURN(const auto queue, device->CreateQueue("compute"));
  TESSERA_ASSIGN_OR_RETURN(auto engines,
                           collectives::CreateInProcessEngines(1));
  TESSERA_ASSIGN_OR_RETURN(
      auto host, collectives::Communicator::Create(std::move(engines[0])));
  TESSERA_ASSIGN_OR_RETURN(
      const auto world,
      collectives::CreateEmulatedCommunicator(std::move(host), *device));
  offload::HostTier tier(
      std::make_shared<offload::Accounting>("host", offload::kUnlimited));
  zero3::ShardedStateOptions options;
  options.queue = queue.get();
  options.bucket_bytes = std::max<int64_t>(
      1, static_cast<int64_t>(static_cast<double>(options.bucket_bytes) /
                              ScaleOf(model)));
  if (offload.parameters) options.parameter_tier = &tier;
  if (offload.optimizer) {
    options.optimizer_tier = &tier;
    options.optimizer_on_host = offload.host_steps;
    if (offload.early) options.speculative_bytes = offload::kUnlimited;
  }
  TESSERA_ASSIGN_OR_RETURN(const ModelParameters parameters, MakeModel(model));
  TESSERA_ASSIGN_OR_RETURN(
      const auto state,
      ShardedState::Create(parameters, options, {.shard = world.get()}));
  TESSERA_RETURN_IF_ERROR(RunSteps(*state, kFirstSteps));
  const SimulatedTime first = device->simulated_time();
  TESSERA_RETURN_IF_ERROR(RunSteps(*state, kSteps));
  const SimulatedTime all = device->simulated_time();
  SimulatedStep step;
  step.work = (all.work - first.work) / kSteps;
  step.uploads = (all.uploads - first.uploads) / kSteps;
  step.downloads = (all.downloads - first.downloads) / kSteps;
  if (offload.host_steps) {
    step.host_optimizer = kHostStepBytes * static_cast<double>(model.layers) *
                          static_cast<double>(model.layer_parameters) /
                          model.host_bytes_per_second;
  }
  step.elapsed = (all.elapsed - first.elapsed) / kSteps;
  return step;
}

void StepPrinter::Print(const Offload& offload, const SimulatedStep& step) {
  const nlohmann::ordered_json record = {
      {"offload", offload.name},
      {"step_ms", step.elapsed * 1e3},
      {"work_ms", step.work * 1e3},
      {"uploads_ms", step.uploads * 1e3},
      {"downloads_ms", step.downloads * 1e3},
      {"host_optimizer_ms", step.host_optimizer * 1e3},
      {"bound_ms", step.bound() * 1e3},
      {"share", step.share()}};
  std::string text;
  if (!printer_.begun()) {
    text = absl::StrFormat("%-22s %10s %10s %10s %10s %10s %10s %6s\n",
                           "offload", "step ms", "work", "uploads", "downloads",
                           "host opt.", "bound", "share");
  }
  absl::StrAppendFormat(
      &text, "%-22s %10.3f %10.3f %10.3f %10.3f %10.3f %10.3f %6.3f\n",
      offload.name, step.elapsed * 1e3, step.work * 1e3, step.uploads * 1e3,
      step.downloads * 1e3, step.host_optimizer * 1e3, step.bound() * 1e3,
      step.share());
  printer_.Print(record, text);
}

}  // namespace tessera::offload_bench
