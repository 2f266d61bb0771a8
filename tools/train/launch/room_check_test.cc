#include "tools/train/launch/room_check.h"

#include <sstream>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/model_files/presets.h"
#include "tools/train/predict/predict_run.h"

namespace tessera::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

RunPrediction PredictIn(const Settings& settings, int64_t bytes) {
  return *PredictRun(settings, *model_files::PresetConfig(settings.model),
                     {.room = MachineRoom{.bytes = bytes,
                                          .limit = "cgroup /job memory.max",
                                          .process = 1 << 20}});
}

TEST(CheckRoomTest, SaysNothingWhereTheRunFits) {
  const Settings settings;
  std::ostringstream err;
  EXPECT_THAT(CheckRoom(settings, PredictIn(settings, int64_t{1} << 40), err),
              IsOk());
  EXPECT_EQ(err.str(), "");
}

TEST(CheckRoomTest, RefusesWithBytesAndAdvice) {
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
               AllOf(HasSubstr("--model=llama-10m: its 8 ranks here need"),
                     HasSubstr(std::to_string(prediction.needed) + " bytes"),
                     HasSubstr("0.1 GiB (104857600 bytes) are available of "
                               "the cgroup /job memory.max"),
                     HasSubstr(prediction.advice.front().flag),
                     HasSubstr("--force"), Not(HasSubstr("\n")))));
  EXPECT_EQ(err.str(), "");
}

TEST(CheckRoomTest, SaysWhereNoFlagHelps) {
  Settings settings;
  settings.parallel.mesh = {};
  settings.recompute = "full";
  settings.offload_dir = "files";
  settings.offload = "all";
  const RunPrediction prediction = PredictIn(settings, 100);
  std::ostringstream err;
  EXPECT_THAT(CheckRoom(settings, prediction, err),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("its rank here needs"),
                             HasSubstr("no flag helps"))));
}

TEST(CheckRoomTest, ForceTurnsTheRefusalIntoAWarning) {
  Settings settings;
  settings.force = true;
  std::ostringstream err;
  EXPECT_THAT(CheckRoom(settings, PredictIn(settings, 1000), err), IsOk());
  EXPECT_THAT(err.str(), AllOf(HasSubstr("1000 bytes) are available"),
                               HasSubstr("because of --force")));
}

}  // namespace
}  // namespace tessera::train
