// The expectations of trustformers' model_parallel.rs.
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/tensor.h"
#include "collectives/groups/group_manager.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generate.h"
#include "tensor_parallel/sharding/distributed_tensor.h"
#include "tensor_parallel/sharding/partition.h"
#include "tensor_parallel/sharding/sharded_layout.h"
#include "topology/device_mesh.h"
#include "topology/mesh.h"

namespace tessera {
namespace {

using collectives::Communicator;
using collectives::GroupManager;
using tensor_parallel::DistributedTensor;
using tensor_parallel::IndexRange;
using tensor_parallel::Partition;
using tensor_parallel::PartitionRule;
using tensor_parallel::ShardedLayout;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using topology::DeviceId;
using topology::DeviceMesh;
using topology::Mesh;
using topology::Rank;

Mesh FourRanks() { return *Mesh::Create(*topology::ParseAxes("tp4")); }

TEST(TrustformersPartitionTest, RowsOfFourRanks) {
  const Mesh mesh = FourRanks();
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const ShardedLayout layout,
      ShardedLayout::Create(mesh, {{128, 512}}, {{.axis = "tp", .dim = 0}}));
  EXPECT_EQ(layout.BoxOf(Rank(0)).ranges[0], (IndexRange{0, 32}));
  EXPECT_EQ(layout.BoxOf(Rank(3)).ranges[0], (IndexRange{96, 128}));
  EXPECT_THAT(layout.BoxOf(Rank(1)).shape(), ElementsAre(32, 512));
  EXPECT_TRUE(layout.requires_communication());
}

TEST(TrustformersPartitionTest, ChunksAreRoundedUp) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Partition chunks,
      Partition::Create(10, 4, PartitionRule::CeilChunks()));
  EXPECT_THAT(chunks.Sizes(), ElementsAre(3, 3, 3, 1));
}

TEST(TrustformersPartitionTest, RejectsDimensionThatDoesNotExist) {
  EXPECT_THAT(ShardedLayout::Create(FourRanks(), {{128, 512}},
                                    {{.axis = "tp", .dim = 2}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2")));
}

TEST(TrustformersTensorTest, GatherRestoresTheTensorAlongEachDimension) {
  const Mesh mesh = FourRanks();
  EXPECT_THAT(
      collectives::RunRanks(
          4,
          [&](Communicator& world) -> absl::Status {
            TESSERA_ASSIGN_OR_RETURN(auto groups,
                                     GroupManager::Create(world, mesh));
            TESSERA_ASSIGN_OR_RETURN(Tensor whole,
                                     Tensor::Create(DType::kF32, {{6, 8}}));
            const auto values = *whole.view().AsSpan<float>();
            std::iota(values.begin(), values.end(), 0.0f);
            for (const int dim : {0, 1}) {
              TESSERA_ASSIGN_OR_RETURN(
                  const ShardedLayout layout,
                  ShardedLayout::Create(mesh, {{6, 8}},
                                        {{.axis = "tp", .dim = dim}}));
              TESSERA_ASSIGN_OR_RETURN(
                  const DistributedTensor shard,
                  DistributedTensor::FromWhole(layout, groups->mesh_rank(),
                                               whole.view(), HostQueue()));
              TESSERA_ASSIGN_OR_RETURN(
                  DistributedTensor all,
                  Gather(*groups, HostQueue(), shard, dim));
              const auto got = *all.local().view().AsSpan<float>();
              if (!std::equal(got.begin(), got.end(), values.begin(),
                              values.end())) {
                return absl::InternalError("the gathered tensor differs");
              }
            }
            return absl::OkStatus();
          }),
      Each(IsOk()));
}

TEST(TrustformersDeviceMeshTest, TwoByTwo) {
  const std::vector<DeviceId> devices = {DeviceId(0), DeviceId(1), DeviceId(2),
                                         DeviceId(3)};
  TESSERA_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh,
                               DeviceMesh::Balanced(devices));
  EXPECT_THAT(mesh.At({0, 0}), IsOkAndHolds(DeviceId(0)));
  EXPECT_THAT(mesh.At({0, 1}), IsOkAndHolds(DeviceId(1)));
  EXPECT_THAT(mesh.At({1, 0}), IsOkAndHolds(DeviceId(2)));
  EXPECT_THAT(mesh.At({1, 1}), IsOkAndHolds(DeviceId(3)));
  EXPECT_THAT(mesh.At({2, 0}), StatusIs(absl::StatusCode::kInvalidArgument));
}

// Stage 0 of 4 with 8 micro-batches runs p - 1 - s = 3 forwards first.
TEST(TrustformersScheduleTest, OneForwardOneBackward) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const pipeline::Schedule schedule,
      pipeline::Generate("1f1b", {.ranks = 4, .microbatches = 8}));
  for (size_t stage = 0; stage < 4; ++stage) {
    std::string order;
    for (const pipeline::Action& action : schedule.ranks[stage]) {
      order += action.kind == pipeline::ActionKind::kForward ? 'F' : 'B';
    }
    const size_t warm_up = 3 - stage;
    std::string want(warm_up, 'F');
    for (size_t i = warm_up; i < 8; ++i) want += "FB";
    want += std::string(warm_up, 'B');
    EXPECT_EQ(order, want) << "stage " << stage;
  }
}

}  // namespace
}  // namespace tessera
