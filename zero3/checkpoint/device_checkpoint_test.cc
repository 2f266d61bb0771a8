// Checkpoints of states on emulated devices: written while training goes on,
// the same bits as from the CPU, and loaded by either.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/device/testing/forgetful_device.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_emulated.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/tier/host_tier.h"
#include "zero3/checkpoint/checkpoint_writer.h"
#include "zero3/checkpoint/load_checkpoint.h"
#include "zero3/checkpoint/state_blocks.h"
#include "zero3/checkpoint/testing/state.h"
#include "zero3/state/testing/tiers.h"
#include "zero3/state/testing/toy_training.h"

namespace tessera::zero3 {
namespace {

using testing::BitCollector;
using ::testing::Each;
using testing::NewDirectory;
using testing::OnRanks;
using testing::RankGroups;
using testing::ToyModel;

constexpr int64_t kRanks = 2;
constexpr int64_t kSavedStep = 3;

struct Collected {
  BitCollector saved, loaded, end;
};

// The host does not wait for the device.
absl::Status TakeSnapshot(ShardedState& state, const RankGroups& groups) {
  TESSERA_ASSIGN_OR_RETURN(const StateShare share,
                           ShareOf(state, groups.shard->rank(), kRanks));
  const Device& device = state.queue().device();
  const int64_t waits = device.counts().host_waits;
  TESSERA_ASSIGN_OR_RETURN(
      const Snapshot snapshot,
      Snapshot::Take(state, PlanBlocks(share, MomentsOf(state), 100), nullptr));
  EXPECT_EQ(device.counts().host_waits, waits);
  return absl::OkStatus();
}

// Trains, saves with Start, trains on, and loads what was saved.
absl::Status SaveAndLoad(const RankGroups& groups, ShardedStateOptions options,
                         const std::string& directory, Collected& bits) {
  options.moments = offload::MomentFormat::Blockwise8(64);
  TESSERA_ASSIGN_OR_RETURN(
      auto state,
      ShardedState::Create(ToyModel(DType::kBF16), options, groups.of_state()));
  TESSERA_ASSIGN_OR_RETURN(auto writer,
                           CheckpointWriter::Create(groups.of_checkpoint(),
                                                    {.directory = directory}));
  TESSERA_RETURN_IF_ERROR(testing::FillFirst(*state));
  TESSERA_RETURN_IF_ERROR(
      testing::TrainSteps(*state, groups, kRanks, 0, kSavedStep));
  TESSERA_RETURN_IF_ERROR(TakeSnapshot(*state, groups));
  const PendingCheckpoint pending = writer->Start(*state, {});
  TESSERA_RETURN_IF_ERROR(
      testing::TrainSteps(*state, groups, kRanks, kSavedStep, kSavedStep + 2));
  TESSERA_ASSIGN_OR_RETURN(const std::string path, pending.Wait());
  TESSERA_RETURN_IF_ERROR(bits.end.Add(*state));
  TESSERA_RETURN_IF_ERROR(
      LoadCheckpoint(path, groups.of_checkpoint(), *state).status());
  EXPECT_EQ(state->steps(), kSavedStep);
  TESSERA_RETURN_IF_ERROR(bits.saved.Add(*state));
  // The loaded state trains as the saved one.
  TESSERA_RETURN_IF_ERROR(
      testing::TrainSteps(*state, groups, kRanks, kSavedStep, kSavedStep + 2));
  TESSERA_RETURN_IF_ERROR(bits.loaded.Add(*state));
  // Without a copy, too.
  return writer->Save(*state, {}).status();
}

TEST(DeviceCheckpointTest, MatchesCpuBitForBit) {
  for (int stage = 0; stage < 4; ++stage) {
    SCOPED_TRACE(absl::StrCat("stage ", stage));
    ShardedStateOptions options;
    options.stage = stage;
    const std::string cpu = NewDirectory("cpu");
    Collected expected;
    EXPECT_THAT(OnRanks(kRanks, 1,
                        [&](const RankGroups& groups) {
                          return SaveAndLoad(groups, options, cpu, expected);
                        }),
                Each(IsOk()));
    EXPECT_EQ(expected.loaded.bits(), expected.end.bits());
    offload::HostTier host(
        std::make_shared<offload::Accounting>("host", offload::kUnlimited));
    zero3::testing::FarTier far;
    // The host steps the state in the tiers.
    offload::MemoryTier* const tiers[] = {nullptr, &host, &far};
    for (const uint64_t seed : {0, 1, 2, 3, 4, 5}) {
      const std::string directory = NewDirectory("device");
      Collected actual;
      EXPECT_THAT(collectives::RunEmulated(
                      kRanks, seed + 1,
                      [&](collectives::EmulatedRank& rank) {
                        const int64_t index = rank.communicator.rank().value();
                        ShardedStateOptions on_device = options;
                        on_device.queue = &rank.queue;
                        on_device.optimizer_tier = tiers[seed % 3];
                        on_device.key_prefix = absl::StrCat(index, "/");
                        return SaveAndLoad({.rank = index,
                                            .world = &rank.communicator,
                                            .shard = &rank.communicator},
                                           on_device, directory, actual);
                      }),
                  Each(IsOk()));
      EXPECT_EQ(actual.saved.bits(), expected.saved.bits());
      EXPECT_EQ(actual.loaded.bits(), expected.loaded.bits());
      EXPECT_EQ(actual.end.bits(), expected.end.bits());
    }
  }
}

TEST(DeviceCheckpointTest, ASnapshotWaitsForItsCopies) {
  for (const uint64_t seed : {1, 2, 3}) {
    EXPECT_THAT(
        collectives::RunEmulated(
            kRanks, seed,
            [&](collectives::EmulatedRank& rank) -> absl::Status {
              ForgetfulDevice device(
                  std::shared_ptr<Device>(&rank.device, [](Device*) {}),
                  {.file = "zero3/checkpoint/state_blocks.cc"});
              TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Queue> queue,
                                       device.CreateQueue("compute"));
              ShardedStateOptions options;
              options.queue = queue.get();
              const RankGroups groups = {
                  .rank = rank.communicator.rank().value(),
                  .world = &rank.communicator,
                  .shard = &rank.communicator};
              TESSERA_ASSIGN_OR_RETURN(
                  const auto state,
                  ShardedState::Create(ToyModel(DType::kF32), options,
                                       groups.of_state()));
              TESSERA_RETURN_IF_ERROR(testing::FillFirst(*state));
              TESSERA_ASSIGN_OR_RETURN(
                  const StateShare share,
                  ShareOf(*state, groups.shard->rank(), kRanks));
              TESSERA_ASSIGN_OR_RETURN(
                  const Snapshot snapshot,
                  Snapshot::Take(*state,
                                 PlanBlocks(share, MomentsOf(*state), 100),
                                 nullptr));
              return snapshot.ForEachBlock(
                  [](const BlockRange&, std::span<const std::byte>) {
                    return absl::OkStatus();
                  });
            }),
        Each(StatusIs(
            absl::StatusCode::kInternal,
            ::testing::HasSubstr("\"write a snapshot\" on the host"))));
  }
}

}  // namespace
}  // namespace tessera::zero3
