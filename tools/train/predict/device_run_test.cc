// Tests that runs on emulated devices need no more than their predicted memory.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"
#include "tools/text/samples.h"
#include "tools/train/loop/offload_tiers.h"
#include "tools/train/loop/rank_device.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/report/tier_log.h"
#include "tools/train/settings/run_options_from.h"
#include "tools/train/settings/settings.h"
#include "tools/train/step/train_rank.h"
#include "tools/train/testing/small_text.h"

namespace tessera::train {
namespace {

using collectives::Communicator;
using ::testing::Each;

const model_files::ModelConfig& Model() {
  static const auto& model =
      *new model_files::ModelConfig(*model_files::PresetConfig("llama-1m"));
  return model;
}

// Three steps of a rank that takes `bytes` of its device at the start. Returns
// how often it allocated device memory.
absl::StatusOr<int64_t> AllocationsOf(Communicator& world,
                                      const Settings& settings, int64_t bytes) {
  TESSERA_ASSIGN_OR_RETURN(
      const auto device,
      RankDevice::Create(settings, world, {.memory_bytes = bytes}));
  TESSERA_ASSIGN_OR_RETURN(RunOptions options,
                           RunOptionsFrom(settings, Model()));
  TESSERA_ASSIGN_OR_RETURN(
      const auto tiers,
      OffloadTiers::Create(settings, std::make_shared<TierLog>()));
  tiers->AddTo(options);
  TESSERA_ASSIGN_OR_RETURN(const text::Samples samples,
                           text::Samples::Create(testing::SmallText(),
                                                 {.sequence = options.length}));
  TESSERA_ASSIGN_OR_RETURN(
      const auto rank,
      TrainRank::Create(device->world(), options, samples, device->ops()));
  for (int step = 0; step < 3; ++step) {
    TESSERA_RETURN_IF_ERROR(rank->Step().status());
  }
  return device->device().counts().allocations;
}

// The allocations of all ranks.
int64_t AllocationsWith(const Settings& settings, int64_t bytes) {
  std::atomic<int64_t> sum = 0;
  EXPECT_THAT(
      collectives::RunRanks(settings.parallel.mesh.world_size(),
                            [&](Communicator& world) -> absl::Status {
                              TESSERA_ASSIGN_OR_RETURN(
                                  const int64_t allocations,
                                  AllocationsOf(world, settings, bytes));
                              sum += allocations;
                              return absl::OkStatus();
                            }),
      Each(IsOk()));
  return sum;
}

TEST(DeviceRunTest, RanksTakeThePredictedMemoryOnceAndNeedIt) {
  struct Case {
    MeshSizes mesh;
    int64_t zero;
    std::string offload;
    DType dtype = DType::kBF16;
    std::string recompute = "none";
  };
  for (const Case& c :
       {Case{{}, 0, "none"}, Case{{}, 0, "none", DType::kF32, "full"},
        Case{{}, 0, "optimizer"}, Case{{.dp = 2}, 1, "optimizer"},
        Case{{.dp = 2}, 3, "none"}, Case{{.dp = 2}, 3, "all"},
        Case{{.pp = 2}, 0, "optimizer,activations"},
        Case{{.dp = 2, .tp = 2}, 2, "none"}}) {
    Settings settings;
    settings.device = "emulated";
    settings.engine = "in_process";
    settings.parallel.mesh = c.mesh;
    settings.parallel.dtype = c.dtype;
    settings.zero = c.zero;
    settings.offload = c.offload;
    settings.recompute = c.recompute;
    settings.batch = 4;
    settings.length = 64;
    SCOPED_TRACE(c.mesh.ToFlag() + " zero " + std::to_string(c.zero) +
                 " offload " + c.offload);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const RunPrediction prediction,
        MakePrediction(settings, Model(), {.room = MachineRoom()}));
    const int64_t ranks = c.mesh.world_size();
    EXPECT_EQ(AllocationsWith(settings, prediction.device_bytes()), ranks);
    // A ninth of it is headroom.
    EXPECT_GT(AllocationsWith(settings, prediction.device_bytes() * 3 / 4),
              ranks);
  }
}

}  // namespace
}  // namespace tessera::train
