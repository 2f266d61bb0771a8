#include "tools/train/predict/choose_order.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "collectives/operation/operation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/train/settings/run_options_from.h"

namespace tessera::train {
namespace {

using collectives::OpKind;
using collectives::RankLocation;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using topology::CollectiveKind;
using topology::DeviceIndex;
using topology::LinkLevel;
using topology::Transfer;

constexpr int64_t kBytes = 258;  // Words of the byte tokenizer, and more.

std::vector<RankLocation> Hosts(int64_t hosts, int64_t ranks_per_host) {
  std::vector<RankLocation> locations;
  for (int64_t r = 0; r < hosts * ranks_per_host; ++r) {
    locations.push_back({absl::StrCat("h", r / ranks_per_host), std::nullopt});
  }
  return locations;
}

absl::StatusOr<std::string> AutoOrder(
    Settings settings, const std::vector<RankLocation>& locations) {
  settings.order = "auto";
  return ChooseOrder(settings, *ModelOf(settings, kBytes), locations);
}

TEST(ChooseOrderTest, KeepsGivenOrder) {
  Settings settings;
  settings.order = "pp-tp-dp";
  EXPECT_THAT(ChooseOrder(settings, *ModelOf(settings, kBytes), Hosts(4, 2)),
              IsOkAndHolds("pp-tp-dp"));
}

TEST(ChooseOrderTest, IsDefaultOnEqualLinks) {
  const Settings settings;
  EXPECT_THAT(AutoOrder(settings, {}), IsOkAndHolds(Settings().order));
  EXPECT_THAT(AutoOrder(settings, Hosts(1, 8)), IsOkAndHolds(Settings().order));
  EXPECT_THAT(AutoOrder(settings, Hosts(8, 1)), IsOkAndHolds(Settings().order));
}

// Tensor ranks exchange the activations of every layer, data ranks a small
// model's gradients once.
TEST(ChooseOrderTest, TensorRanksShareAHost) {
  Settings settings;
  settings.parallel.mesh = {.dp = 2, .tp = 4};
  settings.length = 1024;
  EXPECT_THAT(AutoOrder(settings, Hosts(2, 4)),
              IsOkAndHolds(StartsWith("tp-")));
}

// The state of a model with short sequences is most of the traffic.
TEST(ChooseOrderTest, DataRanksShareAHostIfTheySendMost) {
  Settings settings;
  settings.model = "llama-10m";
  settings.parallel.mesh = {.dp = 2, .pp = 2};
  settings.length = 8;
  settings.batch = 2;
  settings.zero = 3;
  EXPECT_THAT(AutoOrder(settings, Hosts(2, 2)),
              IsOkAndHolds(StartsWith("tp-cp-dp-")));
  settings.parallel.mesh = {.dp = 2, .cp = 2};
  settings.batch = 64;
  settings.length = 512;
  settings.parallel.micro_batch = 32;
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string order,
                               AutoOrder(settings, Hosts(2, 2)));
  EXPECT_THAT(settings.parallel.mesh.ParseOrder(order), IsOk());
}

TEST(ChooseOrderTest, RejectsNonConsecutiveRanksOfHost) {
  Settings settings;
  settings.parallel.mesh = {.dp = 2, .tp = 2};
  EXPECT_THAT(
      AutoOrder(settings, {{"a", 0}, {"b", 0}, {"a", 0}, {"b", 0}}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("--order=auto: rank 2 is on the host of a lower rank, "
                         "and rank 1 is not")));
}

TEST(ClusterOfTest, HostsMayDifferAndHaveSockets) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const topology::Cluster cluster,
      ClusterOf(std::vector<RankLocation>{
          {"a", 0}, {"a", 1}, {"b", 0}, {"b", std::nullopt}, {"b", 1}}));
  EXPECT_EQ(cluster.num_hosts(), 2);
  EXPECT_EQ(cluster.num_devices(), 5);
  const auto level = [&](int64_t a, int64_t b) {
    return cluster.LinkBetween(DeviceIndex(a), DeviceIndex(b))->level;
  };
  EXPECT_EQ(level(0, 1), LinkLevel::kHost);
  EXPECT_EQ(level(1, 2), LinkLevel::kNetwork);
  EXPECT_EQ(level(2, 3), LinkLevel::kNumaNode);
  EXPECT_EQ(level(2, 4), LinkLevel::kNumaNode);
}

TEST(TrafficOfAxesTest, TheStateCountsAlongDpOrElseAlongCp) {
  MeshSizes mesh = {.dp = 2, .cp = 2, .tp = 2};
  RankTraffic traffic(mesh);
  traffic.Add(TrafficAxis::kTp, OpKind::kAllReduce, 100, 3);
  traffic.Add(TrafficAxis::kCp, OpKind::kSend, 20, 5);
  traffic.Add(TrafficAxis::kCp, OpKind::kReceive, 20, 5);
  traffic.Add(TrafficAxis::kDp, OpKind::kReduceScatter, 700, 1);
  const auto axes = TrafficOfAxes(traffic, mesh);
  ASSERT_EQ(axes.size(), 4u);
  EXPECT_EQ(axes[0].axis.name, "tp");
  EXPECT_THAT(axes[0].transfers,
              ElementsAre(Transfer{CollectiveKind::kAllReduce, 100, 3}));
  EXPECT_THAT(axes[1].transfers,
              ElementsAre(Transfer{CollectiveKind::kSendRecv, 20, 5}));
  EXPECT_THAT(axes[2].transfers,
              ElementsAre(Transfer{CollectiveKind::kReduceScatter, 700, 1}));
  EXPECT_THAT(axes[3].transfers, IsEmpty());
  mesh.dp = 1;
  EXPECT_EQ(TrafficOfAxes(traffic, mesh)[1].transfers.size(), 2u);
}

TEST(LocationsOfTest, HostsHaveLocalWorldSizeRanks) {
  topology::LauncherEnvironment environment;
  environment.world_size = topology::AxisSize(5);
  EXPECT_THAT(LocationsOf(environment), IsEmpty());
  environment.local_world_size = 2;
  const auto locations = LocationsOf(environment);
  ASSERT_EQ(locations.size(), 5u);
  EXPECT_EQ(locations[0], locations[1]);
  EXPECT_EQ(locations[2], locations[3]);
  EXPECT_NE(locations[1].host, locations[2].host);
  EXPECT_NE(locations[3].host, locations[4].host);
}

}  // namespace
}  // namespace tessera::train
