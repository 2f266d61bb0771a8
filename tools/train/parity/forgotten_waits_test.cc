// Tests that each wait of the trainer for a device is needed: an emulated
// device detects that it is missing, in any order of the work.
#include <cstdint>
#include <ostream>
#include <string>

#include "base/device/testing/forgetful_device.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/train/parity/testing/parity_case.h"
#include "tools/train/parity/testing/train_case.h"

namespace tessera::train {
namespace {

using ::testing::HasSubstr;

struct Planted {
  std::string bug;
  ParityCase run;
  ForgottenWaits forgotten;

  friend std::ostream& operator<<(std::ostream& os, const Planted& planted) {
    return os << planted.bug;
  }
};

class ForgottenWaitsTest : public ::testing::TestWithParam<Planted> {};

TEST_P(ForgottenWaitsTest, AreDetected) {
  for (int64_t seed = 1; seed <= 3; ++seed) {
    ParityCase run = GetParam().run;
    run.device_seed = seed;
    run.steps = 3;
    TESSERA_EXPECT_OK(TrainCase(run));
    const absl::Status status =
        TrainForgetful(run, GetParam().forgotten).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                                 HasSubstr("missing wait")));
    if (seed == 1) RecordProperty("report", std::string(status.message()));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Planted, ForgottenWaitsTest,
    ::testing::Values(
        Planted{"WeightGather",
                {.mesh = {.dp = 2}, .stage = 3},
                {"zero3/state/weight_gather.cc", "compute"}},
        Planted{"GradientReduction",
                {.mesh = {.dp = 2}, .stage = 2},
                {"zero3/state/gradient_reduction.cc", "compute"}},
        Planted{"BufferReuse",
                {.mesh = {.dp = 2}, .stage = 3},
                {"zero3/state/state_device.cc", "compute"}},
        Planted{"PipelineSend",
                {.mesh = {.pp = 2}},
                {"pipeline/execute/messenger.cc", "to rank"}},
        Planted{"PipelineReceive",
                {.mesh = {.pp = 2}},
                {"pipeline/execute/messenger.cc", "compute"}},
        Planted{"TensorParallelSum",
                {.mesh = {.tp = 2}},
                {"tensor_parallel/layers/tensor_group.cc", "compute"}},
        Planted{
            "OffloadTransfer",
            {.mesh = {.dp = 2}, .stage = 3, .offload = "all", .tier = "host"},
            {"zero3/state/shard_store.cc", "compute"}}),
    [](const auto& info) { return info.param.bug; });

}  // namespace
}  // namespace tessera::train
