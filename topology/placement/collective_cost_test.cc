#include "topology/placement/collective_cost.h"

#include <map>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::topology {
namespace {

LinkProfile Profile(int64_t size) {
  LinkProfile profile;
  profile.size = size;
  profile.ring.Add({1, 0.25});
  profile.chain.Add({2, 0.5});
  profile.exchange = {3, 10};
  return profile;
}

TEST(CollectiveCostTest, FollowsTheFormulas) {
  const LinkProfile profile = Profile(4);
  // 16 bytes over 4 ranks: parts of 4 bytes; 3 steps.
  const std::map<CollectiveKind, double> seconds = {
      {CollectiveKind::kAllReduce, 2 * 3 * (1 + 4 * 0.25)},
      {CollectiveKind::kAllGather, 3 * (1 + 4 * 0.25)},
      {CollectiveKind::kReduceScatter, 3 * (1 + 4 * 0.25)},
      {CollectiveKind::kAllToAll, 3 * 3 + 4 * 10},
      {CollectiveKind::kSendRecv, 2 + 16 * 0.5},
  };
  for (const auto& [kind, expected] : seconds) {
    EXPECT_DOUBLE_EQ(TransferSeconds({kind, 16, 1}, profile), expected) << kind;
    EXPECT_DOUBLE_EQ(TransferSeconds({kind, 16, 7}, profile), 7 * expected);
    EXPECT_EQ(TransferSeconds({kind, 16, 1}, Profile(1)), 0) << kind;
    EXPECT_EQ(TransferSeconds({kind, 16, 0}, profile), 0) << kind;
  }
}

TEST(CollectiveCostTest, TrafficIsTheSumOfItsTransfers) {
  const LinkProfile profile = Profile(4);
  const std::vector<Transfer> transfers = {{CollectiveKind::kAllReduce, 16, 2},
                                           {CollectiveKind::kSendRecv, 4, 3}};
  EXPECT_DOUBLE_EQ(TrafficSeconds(transfers, profile),
                   TransferSeconds(transfers[0], profile) +
                       TransferSeconds(transfers[1], profile));
  EXPECT_EQ(TrafficSeconds({}, profile), 0);
}

TEST(CollectiveCostTest, NeedsAreThoseOfTheFormulas) {
  const auto needs = [](CollectiveKind kind) {
    const std::vector<Transfer> transfers = {{kind, 1, 1}};
    const LinkNeeds needs = NeedsOf(transfers);
    return std::vector<bool>{needs.ring, needs.chain, needs.exchange};
  };
  const std::vector<bool> ring = {true, false, false};
  EXPECT_EQ(needs(CollectiveKind::kAllReduce), ring);
  EXPECT_EQ(needs(CollectiveKind::kAllGather), ring);
  EXPECT_EQ(needs(CollectiveKind::kReduceScatter), ring);
  EXPECT_EQ(needs(CollectiveKind::kSendRecv),
            (std::vector<bool>{false, true, false}));
  EXPECT_EQ(needs(CollectiveKind::kAllToAll),
            (std::vector<bool>{false, false, true}));
}

TEST(CollectiveCostTest, BytesPerLink) {
  EXPECT_EQ(BytesPerLink({CollectiveKind::kAllReduce, 16, 5}, 4), 24);
  EXPECT_EQ(BytesPerLink({CollectiveKind::kAllGather, 16, 5}, 4), 12);
  EXPECT_EQ(BytesPerLink({CollectiveKind::kReduceScatter, 16, 5}, 4), 12);
  EXPECT_EQ(BytesPerLink({CollectiveKind::kAllToAll, 16, 5}, 4), 4);
  EXPECT_EQ(BytesPerLink({CollectiveKind::kSendRecv, 16, 5}, 4), 16);
  EXPECT_EQ(BytesPerLink({CollectiveKind::kSendRecv, 16, 5}, 1), 0);
}

}  // namespace
}  // namespace tessera::topology
