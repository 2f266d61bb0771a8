#include "tools/train/launch/memory_check.h"

#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/byte_size.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"
#include "tools/train/predict/choose_device.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/settings/check_settings.h"
#include "tools/train/settings/offload_choice.h"

namespace tessera::train {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using topology::MemoryStrategy;

constexpr int64_t kMiB = 1 << 20;

// 400 MiB initially; each step of the ladder saves some.
absl::StatusOr<int64_t> Need(const Settings& settings) {
  int64_t needed = 400;
  if (settings.recompute == "selective") needed -= 50;
  if (settings.recompute == "full") needed -= 100;
  if (settings.zero == 3) needed -= 100;
  const OffloadChoice offload = OffloadChoice::Of(settings.offload);
  if (offload.gradients) needed += 10;  // Near memory.
  if (offload.activations && !settings.offload_dir.empty()) needed -= 5;
  if (!settings.offload_dir.empty()) needed -= 150;
  return needed * kMiB;
}

class MemoryStrategyTest : public ::testing::Test {
 protected:
  MemoryStrategyTest() {
    settings_.zero = 1;
    settings_.offload = "none";
  }
  absl::StatusOr<MemoryRung> Fit(const std::string& limit) {
    settings_.parallel.memory_limit = *ParseByteSize(limit);
    return FitMemoryLimit(settings_, *model_files::PresetConfig("llama-1m"),
                          "/scratch", Need);
  }

  Settings settings_;
};

TEST_F(MemoryStrategyTest, ChoosesMildestStrategyThatFits) {
  struct Case {
    std::string limit;
    MemoryStrategy strategy;
    std::string flags;
  };
  const std::vector<Case> cases = {
      {"420MiB", MemoryStrategy::kBasic, ""},
      {"419MiB", MemoryStrategy::kStandard, "--recompute=selective"},
      {"315MiB", MemoryStrategy::kStandard, "--recompute=full"},
      {"314MiB", MemoryStrategy::kAggressive, "--recompute=full --zero=3"},
      {"70MiB", MemoryStrategy::kExtreme,
       "--recompute=full --zero=3 --offload=all --offload_dir=/scratch"},
      {"58MiB", MemoryStrategy::kExtreme,
       "--recompute=full --zero=3 --offload=all,activations "
       "--offload_dir=/scratch"}};
  for (const Case& c : cases) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const MemoryRung choice, Fit(c.limit));
    EXPECT_EQ(choice.strategy, c.strategy) << c.limit;
    EXPECT_EQ(choice.flags, c.flags);
    EXPECT_EQ(choice.needed, *Need(choice.settings));
    EXPECT_EQ(choice.as_given, 400 * kMiB);
    TESSERA_EXPECT_OK(CheckSettings(choice.settings));
    EXPECT_FALSE(absl::StrContains(DescribeChoice(choice), "\n"));
  }
}

TEST_F(MemoryStrategyTest, DescribesChoice) {
  EXPECT_EQ(DescribeChoice(*Fit("420MiB")),
            "memory: strategy basic: as given (predicted 400.0MiB of "
            "--memory_limit=420MiB)");
  EXPECT_EQ(DescribeChoice(*Fit("210MiB")),
            "memory: strategy aggressive: --recompute=full --zero=3 (predicted "
            "200.0MiB of --memory_limit=210MiB; 400.0MiB as given)");
}

TEST_F(MemoryStrategyTest, SkipsSettingsAlreadyGiven) {
  settings_.recompute = "full";
  settings_.zero = 3;
  settings_.offload = "all,activations";
  settings_.offload_dir = "/mine";
  TESSERA_ASSERT_OK_AND_ASSIGN(const MemoryRung choice, Fit("58MiB"));
  EXPECT_EQ(choice.strategy, MemoryStrategy::kBasic);
  EXPECT_THAT(Fit("57MiB"), Not(IsOk()));
}

TEST_F(MemoryStrategyTest, RejectsLimitThatNothingFits) {
  const absl::Status status = Fit("50MiB").status();
  EXPECT_THAT(
      status,
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("--memory_limit=50MiB: the run needs more even "
                               "with strategy extreme"),
                     HasSubstr("--offload_dir=/scratch"),
                     HasSubstr("57671680 bytes on this machine"),
                     HasSubstr("alone has"), HasSubstr("bytes of weights"),
                     HasSubstr("give for example --memory_limit=58MiB"))));
  EXPECT_FALSE(absl::StrContains(status.message(), "\n"));
}

TEST_F(MemoryStrategyTest, ForwardsPredictionErrors) {
  settings_.parallel.memory_limit = ByteSize(1 << 20);
  EXPECT_THAT(
      FitMemoryLimit(settings_, *model_files::PresetConfig("llama-1m"), "/s",
                     [](const Settings&) -> absl::StatusOr<int64_t> {
                       return absl::NotFoundError("no limit");
                     }),
      StatusIs(absl::StatusCode::kNotFound));
}

RunPrediction PredictIn(const Settings& settings, int64_t bytes) {
  return *PredictRun(settings, *model_files::PresetConfig(settings.model),
                     {.room = MachineRoom{.bytes = bytes,
                                          .limit = "cgroup /job memory.max",
                                          .process = 1 << 20}});
}

TEST(CheckRoomTest, IsSilentIfRunFits) {
  const Settings settings;
  std::ostringstream err;
  EXPECT_THAT(CheckRoom(settings, PredictIn(settings, int64_t{1} << 40), err),
              IsOk());
  EXPECT_EQ(err.str(), "");
}

TEST(CheckRoomTest, ErrorsHaveBytesAndAdvice) {
  Settings settings;
  settings.model = "llama-10m";
  settings.zero = 1;
  const RunPrediction prediction = PredictIn(settings, 100 << 20);
  ASSERT_FALSE(prediction.fits());
  ASSERT_FALSE(prediction.advice.empty());
  std::ostringstream err;
  const absl::Status status = CheckRoom(settings, prediction, err);
  EXPECT_THAT(
      status,
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr(
                         "--model=llama-10m: its 8 ranks on this machine need"),
                     HasSubstr(std::to_string(prediction.needed) + " bytes"),
                     HasSubstr("0.1 GiB (104857600 bytes) are available of "
                               "the cgroup /job memory.max"),
                     HasSubstr(prediction.advice.front().flag),
                     HasSubstr("--force"), Not(HasSubstr("\n")))));
  EXPECT_EQ(err.str(), "");
}

// A run on GPUs, whose memory is not the host's.
RunPrediction PredictOnGpu(const Settings& settings, int64_t bytes,
                           int64_t device_bytes) {
  return *PredictRun(
      settings, *model_files::PresetConfig(settings.model),
      {.room =
           MachineRoom{.bytes = bytes,
                       .limit = "machine",
                       .process = 1 << 20,
                       .device = DeviceRoom{.bytes = device_bytes,
                                            .limit = "GPU 0 (NVIDIA H100)"}}});
}

Settings OnGpu() {
  Settings settings;
  settings.model = "llama-50m";
  settings.device = "cuda";
  settings.engine = "in_process";
  settings.parallel.mesh = {.dp = 2};
  settings.offload = "none";
  return settings;
}

TEST(CheckRoomTest, RejectsRunsLargerThanGpuWithAdvice) {
  Settings settings = OnGpu();
  const int64_t limit = 1200 * kMiB;
  const RunPrediction prediction =
      PredictOnGpu(settings, int64_t{1} << 40, limit);
  ASSERT_FALSE(prediction.fits());
  ASSERT_FALSE(prediction.advice.empty());
  std::ostringstream err;
  EXPECT_THAT(
      CheckRoom(settings, prediction, err),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("--model=llama-50m: its 2 ranks on a GPU need"),
                     HasSubstr(std::to_string(prediction.device_needed) +
                               " bytes) of device memory, and 1.2 GiB "
                               "(1258291200 bytes) are available on GPU 0 "
                               "(NVIDIA H100); "),
                     HasSubstr(prediction.advice.front().flag),
                     HasSubstr("of device memory and"),
                     HasSubstr("of host memory"), HasSubstr("--force"),
                     Not(HasSubstr("on this machine")), Not(HasSubstr("\n")))));
  settings.force = true;
  EXPECT_THAT(CheckRoom(settings, prediction, err), IsOk());
  EXPECT_THAT(err.str(), HasSubstr("available on GPU 0"));
}

TEST(CheckRoomTest, RejectsRunsLargerThanHostMemory) {
  Settings settings = OnGpu();
  settings.offload = "optimizer";
  std::ostringstream err;
  const auto refused = [&](int64_t bytes, int64_t device_bytes) {
    return CheckRoom(settings, PredictOnGpu(settings, bytes, device_bytes),
                     err);
  };
  EXPECT_THAT(
      refused(100 * kMiB, int64_t{80} << 30),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("its 2 ranks on this machine need"),
                     HasSubstr("of host memory, and 0.1 GiB (104857600 bytes) "
                               "are available of the machine"),
                     Not(HasSubstr("on a GPU need")))));
  EXPECT_THAT(refused(100 * kMiB, 100 * kMiB),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("on this machine need"),
                             HasSubstr("on a GPU need"))));
}

TEST(CheckRoomTest, ReportsIfNoFlagHelps) {
  Settings settings;
  settings.parallel.mesh = {};
  settings.recompute = "full";
  settings.offload_dir = "files";
  settings.offload = "all";
  const RunPrediction prediction = PredictIn(settings, 100);
  std::ostringstream err;
  EXPECT_THAT(CheckRoom(settings, prediction, err),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("its rank on this machine needs"),
                             HasSubstr("no flag helps"))));
}

TEST(CheckRoomTest, RejectsRunsLargerThanDeviceLimit) {
  Settings settings;
  const int64_t room = int64_t{1} << 40;
  const int64_t needed = PredictIn(settings, room).ranks[0].device;
  settings.parallel.device_budget = ByteSize(needed);
  std::ostringstream err;
  EXPECT_THAT(CheckRoom(settings, PredictIn(settings, room), err), IsOk());
  settings.parallel.device_budget = ByteSize(needed / 2);
  EXPECT_THAT(CheckRoom(settings, PredictIn(settings, room), err),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--device_budget="),
                             HasSubstr("--memory_strategy=aggressive"))));
  settings.force = true;
  EXPECT_THAT(CheckRoom(settings, PredictIn(settings, room), err), IsOk());
}

TEST(CheckRoomTest, ForceTurnsErrorIntoWarning) {
  Settings settings;
  settings.force = true;
  std::ostringstream err;
  EXPECT_THAT(CheckRoom(settings, PredictIn(settings, 1000), err), IsOk());
  EXPECT_THAT(err.str(), AllOf(HasSubstr("1000 bytes) are available"),
                               HasSubstr("because of --force")));
}

}  // namespace

}  // namespace tessera::train
