#include <algorithm>
#include <map>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/context/ulysses_attention.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(HeadPartitionTest, RunsAreAttentionsAndCoverEveryHeadOnce) {
  for (int64_t kv_heads = 1; kv_heads <= 9; ++kv_heads) {
    for (int64_t group = 1; group <= 6; ++group) {
      for (int64_t ranks = 1; ranks <= 12; ++ranks) {
        const int64_t heads = kv_heads * group;
        TESSERA_ASSERT_OK_AND_ASSIGN(
            const HeadPartition partition,
            HeadPartition::Create(heads, kv_heads, ranks));
        int64_t next = 0;
        int64_t least = heads;
        int64_t most = 0;
        std::map<int64_t, int> holders;  // Of each kv head.
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const int64_t first = next;
          int64_t next_kv = partition.KvHeadsOf(rank).begin;
          const std::vector<HeadRun> runs = partition.RunsOf(rank);
          EXPECT_LE(runs.size(), 3u);
          for (const HeadRun& run : runs) {
            ASSERT_FALSE(run.heads.empty());
            EXPECT_EQ(run.heads.begin, next);
            EXPECT_EQ(run.kv_heads.begin, next_kv);
            next = run.heads.end;
            next_kv = run.kv_heads.end;
            ASSERT_EQ(run.heads.size() % run.kv_heads.size(), 0);
            const int64_t each = run.heads.size() / run.kv_heads.size();
            for (int64_t i = 0; i < run.heads.size(); ++i) {
              EXPECT_EQ((run.heads.begin + i) / group,
                        run.kv_heads.begin + i / each);
            }
          }
          EXPECT_EQ(partition.KvHeadsOf(rank).end, next_kv);
          EXPECT_EQ(partition.HeadsOf(rank), (IndexRange{first, next}));
          for (int64_t kv = partition.KvHeadsOf(rank).begin; kv < next_kv;
               ++kv) {
            ++holders[kv];
          }
          least = std::min(least, next - first);
          most = std::max(most, next - first);
        }
        EXPECT_EQ(next, heads);
        EXPECT_LE(most - least, 1);
        EXPECT_EQ(static_cast<int64_t>(holders.size()), kv_heads);
        EXPECT_EQ(partition.shares_kv_heads(),
                  std::any_of(holders.begin(), holders.end(),
                              [](const auto& held) { return held.second > 1; }))
            << heads << " heads, " << kv_heads << " kv, " << ranks << " ranks";
      }
    }
  }
}

TEST(HeadPartitionTest, KvHeadsFewerThanRanksAreShared) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const HeadPartition partition,
                               HeadPartition::Create(8, 2, 4));
  EXPECT_THAT(partition.RunsOf(1), ElementsAre(HeadRun{{2, 4}, {0, 1}}));
  EXPECT_THAT(partition.RunsOf(2), ElementsAre(HeadRun{{4, 6}, {1, 2}}));
  EXPECT_TRUE(partition.shares_kv_heads());
}

// 12 query heads, 3 for each kv head, over 5 ranks: 3 3 2 2 2.
TEST(HeadPartitionTest, UnevenHeadsGiveRunsOfTheirOwn) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const HeadPartition partition,
                               HeadPartition::Create(12, 4, 5));
  EXPECT_THAT(partition.RunsOf(0), ElementsAre(HeadRun{{0, 3}, {0, 1}}));
  EXPECT_THAT(partition.RunsOf(3),
              ElementsAre(HeadRun{{8, 9}, {2, 3}}, HeadRun{{9, 10}, {3, 4}}));
}

TEST(HeadPartitionTest, RanksBeyondTheHeadsHaveNone) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const HeadPartition partition,
                               HeadPartition::Create(2, 1, 3));
  EXPECT_THAT(partition.RunsOf(2), IsEmpty());
  EXPECT_TRUE(partition.KvHeadsOf(2).empty());
}

TEST(HeadPartitionTest, WrongCountsAreRefused) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(HeadPartition::Create(3, 2, 1),
              StatusIs(kInvalid, HasSubstr("3 heads, 2 of keys and values")));
  EXPECT_THAT(HeadPartition::Create(0, 1, 1), StatusIs(kInvalid));
  EXPECT_THAT(HeadPartition::Create(1, 0, 1), StatusIs(kInvalid));
  EXPECT_THAT(HeadPartition::Create(1, 1, 0),
              StatusIs(kInvalid, HasSubstr("over 0 ranks")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
