// Tests predictions of runs on GPUs, whose memory is separate from the host's.
// They use recorded machines and need no GPU.
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tensor_parallel/ops_cuda/library_workspace.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"
#include "tools/train/predict/choose_device.h"
#include "tools/train/predict/print_prediction.h"
#include "tools/train/predict/run_prediction.h"

namespace tessera::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kProcess = 25 << 20;

// Free memory of a machine with 128 GiB, and of its GPUs if it has some.
MachineRoom Machine(std::optional<DeviceRoom> device) {
  return {.bytes = 128 * kGiB,
          .limit = "machine",
          .process = kProcess,
          .device = std::move(device)};
}
MachineRoom H100() {
  return Machine(DeviceRoom{.bytes = 796 * kGiB / 10, .limit = "GPU 0 (H100)"});
}
MachineRoom H200() {
  return Machine(
      DeviceRoom{.bytes = 1404 * kGiB / 10, .limit = "GPU 0 (H200)"});
}

// 2 sequences of 4096 tokens in bf16 with 8-bit moments.
Settings OnGpu() {
  Settings settings;
  settings.device = "cuda";
  settings.engine = "in_process";
  settings.parallel.mesh = {};
  settings.parallel.dtype = DType::kBF16;
  settings.parallel.micro_batch = 2;
  settings.batch = 2;
  settings.length = 4096;
  settings.zero = 0;
  settings.offload = "none";
  settings.moments = "int8";
  return settings;
}

model_files::ModelConfig Llama8B(int64_t layers = 32) {
  model_files::ModelConfig model = *model_files::PresetConfig("llama-8b");
  model.layers = layers;
  return model;
}

// The shape of Llama 3.2 1B.
model_files::ModelConfig Llama1B() {
  model_files::ModelConfig model = Llama8B(16);
  model.hidden = 2048;
  model.intermediate = 8192;
  model.head_size = 64;
  model.tied_embeddings = true;
  return model;
}

RunPrediction Predict(const Settings& settings,
                      const model_files::ModelConfig& model,
                      const MachineRoom& room) {
  return *PredictRun(settings, model, {.room = room});
}

TEST(DevicePredictionTest, PredictsFitOfModels) {
  struct Case {
    model_files::ModelConfig model;
    int64_t gib;
    bool fits_h100;
    bool fits_h200;
  };
  for (const Case& c :
       {Case{Llama8B(), 132, false, true}, Case{Llama8B(16), 76, true, true},
        Case{Llama1B(), 30, true, true}}) {
    const RunPrediction h100 = Predict(OnGpu(), c.model, H100());
    const RunPrediction h200 = Predict(OnGpu(), c.model, H200());
    EXPECT_EQ(h100.fits(), c.fits_h100) << h100.device_needed;
    EXPECT_EQ(h200.fits(), c.fits_h200) << h200.device_needed;
    EXPECT_EQ(h100.device_needed / kGiB, c.gib);
    EXPECT_EQ(h100.device_needed, h200.device_needed);
    // The host has the process, the losses, and at the start the table of
    // rotary positions: 512 bytes for each of 4096.
    EXPECT_LT(h100.needed, kProcess + (1 << 20) + 4096 * 512);
    EXPECT_TRUE(h100.fits_host());
  }
}

TEST(DevicePredictionTest, AddsHeadroomAndWorkspaces) {
  Settings settings = OnGpu();
  const RunPrediction large = Predict(settings, Llama8B(), H200());
  const RankPrediction& rank = large.ranks.front();
  EXPECT_EQ(large.HeadroomOf(rank), 4 * kGiB);
  EXPECT_EQ(rank.workspaces,
            tensor_parallel::LibraryWorkspaceBytes({.sequences = 2,
                                                    .queries = 4096,
                                                    .keys = 4096,
                                                    .heads = 32,
                                                    .kv_heads = 8,
                                                    .head_size = 128,
                                                    .causal = true},
                                                   /*deterministic=*/true));
  EXPECT_EQ(large.device_needed, rank.device + 4 * kGiB + rank.workspaces);
  settings.deterministic = false;
  EXPECT_LT(Predict(settings, Llama8B(), H200()).device_needed,
            large.device_needed - kGiB);
  settings.parallel.dtype = DType::kF32;
  const RunPrediction f32 = Predict(settings, Llama1B(), H200());
  EXPECT_EQ(f32.ranks.front().workspaces,
            tensor_parallel::kCublasLtWorkspaceBytes);
  settings.length = 128;
  const RunPrediction small =
      Predict(settings, *model_files::PresetConfig("llama-1m"), H200());
  EXPECT_EQ(small.HeadroomOf(small.ranks.front()),
            small.ranks.front().device / 8);
}

TEST(DevicePredictionTest, AddsRanksSharingGpu) {
  Settings settings = OnGpu();
  settings.parallel.mesh = {.dp = 2};
  settings.batch = 4;
  const RunPrediction one = Predict(OnGpu(), Llama1B(), H100());
  const RunPrediction two = Predict(settings, Llama1B(), H100());
  EXPECT_EQ(two.ranks_of_gpu, 2);
  EXPECT_EQ(two.device_needed, 2 * two.device_bytes());
  EXPECT_GE(two.device_needed, 2 * one.device_needed);
  // A second GPU has the second rank.
  MachineRoom room = H100();
  room.device->gpus = 2;
  EXPECT_EQ(Predict(settings, Llama1B(), room).device_needed,
            two.device_bytes());
  // Processes have a GPU each, and no windows: messages are the GPUs'.
  settings.engine = "shared_memory";
  const RunPrediction apart = Predict(settings, Llama1B(), H100());
  EXPECT_EQ(apart.ranks_of_gpu, 1);
  EXPECT_EQ(apart.device_needed, two.device_bytes());
  EXPECT_EQ(apart.ranks.front().windows, 0);
  EXPECT_GT(apart.needed, two.needed);
}

// Weights of 2 bytes have master weights and moments: 4 + 8 bytes an element.
// Gradients of 4 bytes come down to the host, and weights go up from there.
TEST(DevicePredictionTest, OffloadMovesBytesFromTheDeviceToTheHost) {
  Settings settings = OnGpu();
  settings.moments = "f32";
  const RunPrediction on_device = Predict(settings, Llama1B(), H200());
  settings.offload = "optimizer";
  const RunPrediction on_host = Predict(settings, Llama1B(), H200());
  const int64_t elements = Llama1B().ParameterCount();
  EXPECT_EQ(on_device.ranks.front().state.optimizer, 12 * elements);
  EXPECT_EQ(on_host.ranks.front().state.optimizer, 0);
  EXPECT_EQ(on_host.ranks.front().state.host, 12 * elements);
  EXPECT_EQ(on_device.ranks.front().device - on_host.ranks.front().device,
            12 * elements);
  const auto moved = static_cast<double>(on_host.needed - on_device.needed);
  EXPECT_NEAR(moved, static_cast<double>((12 + 4 + 2) * elements), 1 << 20);
  // The host also holds the copies with which early steps are undone.
  settings.speculative_bytes = kGiB;
  EXPECT_EQ(Predict(settings, Llama1B(), H200()).needed, on_host.needed + kGiB);
}

TEST(DevicePredictionTest, ACopyForACheckpointIsInHostMemory) {
  Settings settings = OnGpu();
  const RunPrediction end = Predict(settings, Llama1B(), H100());
  settings.checkpoint_every = 1;
  settings.steps = 10;
  const RunPrediction middle = Predict(settings, Llama1B(), H100());
  EXPECT_EQ(middle.device_needed, end.device_needed);
  EXPECT_EQ(middle.needed, end.needed + middle.ranks.front().state.snapshot);
}

TEST(DevicePredictionTest, AdviceReducesTheExceededMemory) {
  const RunPrediction run = Predict(OnGpu(), Llama8B(), H100());
  EXPECT_TRUE(run.fits_host());
  ASSERT_FALSE(run.advice.empty());
  for (const MemoryAdvice& advice : run.advice) {
    EXPECT_LT(advice.device_needed, run.device_needed) << advice.flag;
  }
  EXPECT_TRUE(run.advice.back().fits);
  // State of this size has room in the host's memory.
  Settings settings = OnGpu();
  settings.moments = "f32";
  settings.recompute = "full";
  settings.deterministic = false;
  settings.parallel.micro_batch = 1;
  const RunPrediction state = Predict(settings, Llama8B(20), H100());
  ASSERT_FALSE(state.advice.empty());
  EXPECT_EQ(state.advice.front().flag, "--offload=optimizer");
  EXPECT_TRUE(state.advice.front().fits);
  EXPECT_GT(state.advice.front().needed, 50 * kGiB);
  // Advice for the host does not fill the GPU.
  settings.offload = "optimizer";
  MachineRoom tight = H100();
  tight.bytes = 10 * kGiB;
  const RunPrediction host = Predict(settings, Llama8B(20), tight);
  EXPECT_EQ(host.fits_device(), true);
  EXPECT_FALSE(host.fits());
  for (const MemoryAdvice& advice : host.advice) {
    EXPECT_LT(advice.needed, host.needed) << advice.flag;
    EXPECT_LE(advice.device_needed, tight.device->bytes) << advice.flag;
  }
}

TEST(DevicePredictionTest, HostLimitDoesNotApplyToDevice) {
  const RunPrediction run = Predict(OnGpu(), Llama8B(), Machine(std::nullopt));
  EXPECT_GT(run.device_needed, run.room.bytes);
  EXPECT_EQ(run.fits_device(), std::nullopt);
  EXPECT_TRUE(run.fits());
  std::ostringstream text;
  PrintPredictionText(run, text);
  EXPECT_THAT(text.str(),
              AllOf(HasSubstr("device memory of 1 rank: 133 GiB; no GPU is "
                              "here to compare with"),
                    HasSubstr("host memory of the 1 ranks here: 2"),
                    Not(HasSubstr("DOES NOT FIT"))));
  const auto json = nlohmann::json::parse(PredictionAsJson(run));
  EXPECT_EQ(json["memory"]["needed"], run.needed);
  EXPECT_EQ(json["memory"]["fits"], true);
  EXPECT_EQ(json["memory"]["device"]["needed"], run.device_needed);
  EXPECT_TRUE(json["memory"]["device"]["available"].is_null());
  EXPECT_TRUE(json["memory"]["device"]["fits"].is_null());
}

TEST(DevicePredictionTest, TextAndJsonHaveBothLimits) {
  const RunPrediction run = Predict(OnGpu(), Llama8B(), H100());
  std::ostringstream text;
  PrintPredictionText(run, text);
  EXPECT_THAT(
      text.str(),
      AllOf(HasSubstr("memory of the device"), HasSubstr("memory of the host"),
            HasSubstr("133 GiB of 79.6 GiB that GPU 0 (H100) has free: IT DOES "
                      "NOT FIT"),
            HasSubstr("of 128 GiB that the machine has left: it fits"),
            HasSubstr(" of device memory, "), HasSubstr(", which fits")));
  const auto json = nlohmann::json::parse(PredictionAsJson(run));
  EXPECT_EQ(json["memory"]["fits"], false);
  EXPECT_EQ(json["memory"]["device"]["available"], run.room.device->bytes);
  EXPECT_EQ(json["memory"]["device"]["limit"], "GPU 0 (H100)");
  EXPECT_EQ(json["memory"]["device"]["fits"], false);
  const auto& memory = json["ranks"][0]["memory"];
  EXPECT_EQ(memory["device"], run.device_needed);
  EXPECT_EQ(memory["resident"], run.needed);
  EXPECT_EQ(json["advice"][0]["device_needed"],
            run.advice.front().device_needed);
}

TEST(DevicePredictionTest, AnEmulatedDeviceHasMemoryOfTheHost) {
  Settings settings = OnGpu();
  settings.device = "cpu";
  const RunPrediction cpu = Predict(settings, Llama1B(), H100());
  EXPECT_EQ(cpu.device_needed, 0);
  EXPECT_EQ(nlohmann::json::parse(PredictionAsJson(cpu))["memory"]["device"],
            nullptr);
  settings.device = "emulated";
  const RunPrediction run = Predict(settings, Llama1B(), H100());
  EXPECT_EQ(run.fits_device(), std::nullopt);
  EXPECT_GT(run.device_needed, 0);
  EXPECT_GE(run.needed, cpu.needed);
  EXPECT_LT(run.needed, cpu.needed + (16 << 20));
  EXPECT_EQ(run.ranks.front().workspaces, 0);
}

}  // namespace
}  // namespace tessera::train
