#include "tools/train/loop/rank_device.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/train/settings/settings.h"
#include "topology/rank.h"

namespace tessera::train {
namespace {

using collectives::Communicator;
using ::testing::Each;
using ::testing::HasSubstr;

TEST(RankDeviceTest, TheProcessorUsesTheWorldItself) {
  EXPECT_THAT(collectives::RunRanks(
                  2,
                  [](Communicator& world) -> absl::Status {
                    TESSERA_ASSIGN_OR_RETURN(const auto device,
                                             RankDevice::Create({}, world));
                    EXPECT_EQ(&device->world(), &world);
                    EXPECT_EQ(device->device().name(), "cpu");
                    EXPECT_TRUE(device->queue().is_immediate());
                    EXPECT_EQ(device->pool()->threads(), 1);
                    return absl::OkStatus();
                  }),
              Each(IsOk()));
}

TEST(RankDeviceTest, AnEmulatedDeviceTakesItsMemoryAtTheStart) {
  const auto body = [](Communicator& world) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(
        const auto rank,
        RankDevice::Create({.device = "emulated", .threads = 3}, world,
                           {.memory_bytes = 1 << 20}));
    EXPECT_EQ(&rank->world().host() == &world, false);
    EXPECT_EQ(rank->world().rank(), world.rank());
    EXPECT_EQ(rank->pool()->threads(), 3);
    Device& device = rank->device();
    EXPECT_EQ(device.counts().allocations, 1);
    std::vector<Buffer> buffers;
    for (int i = 0; i < 10; ++i) {
      TESSERA_ASSIGN_OR_RETURN(Buffer buffer,
                               Buffer::Allocate(device.memory(), 50000));
      buffers.push_back(std::move(buffer));
    }
    EXPECT_EQ(device.counts().allocations, 1);
    // A tensor of the device, summed by the world.
    const collectives::Buffer sum(buffers[0].data(), 100, DType::kF32);
    TESSERA_RETURN_IF_ERROR(
        rank->queue().Fill(std::byte(0), buffers[0].bytes()));
    TESSERA_RETURN_IF_ERROR(rank->world().RunOn(
        rank->queue(),
        collectives::AllReduceOf(sum, sum, collectives::Reduction::Sum())));
    return rank->queue().Synchronize();
  };
  EXPECT_THAT(collectives::RunRanks(2, body), Each(IsOk()));
}

TEST(RankDeviceTest, AllRanksMustHaveTheSameKind) {
  const auto body = [](Communicator& world) {
    Settings settings;
    if (world.rank() == topology::Rank(1)) settings.device = "cuda:0";
    if (world.rank() == topology::Rank(2)) settings.device = "cpu";
    return RankDevice::Create(settings, world).status();
  };
  EXPECT_THAT(
      collectives::RunRanks(4, body),
      Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                    HasSubstr("ranks compute on different devices: cpu on "
                              "ranks 0, 2, 3; cuda on rank 1; give "))));
}

TEST(RankDeviceTest, NamesOnlySomeOfManyRanks) {
  const auto body = [](Communicator& world) {
    Settings settings;
    if (world.rank() == topology::Rank(0)) settings.device = "emulated";
    return RankDevice::Create(settings, world).status();
  };
  EXPECT_THAT(collectives::RunRanks(11, body),
              Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                            HasSubstr("cpu on ranks 1, 2, 3, 4, 5, 6, 7, 8 and "
                                      "2 more; emulated on rank 0; "))));
}

// Without a toolkit, a driver or so many GPUs, in one process and in several.
TEST(RankDeviceTest, RejectsMissingGpus) {
  const auto body = [](Communicator& world) {
    return RankDevice::Create({.device = "cuda:4096"}, world).status();
  };
  for (const absl::Status& status : collectives::RunRanks(2, body)) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr("--device=cuda:4096"));
  }
}

}  // namespace
}  // namespace tessera::train
