#include "tensor_parallel/sharding/fused_partition.h"

#include <limits>
#include <map>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

FusedPartition Make(const std::vector<FusedPart>& parts, int64_t ranks) {
  return *FusedPartition::Create(parts, ranks);
}

// Deals units out in turn within each group of neighbours: returns the elements
// of `part`, which begins at `start`, that `rank` has.
std::vector<int64_t> Dealt(const FusedPart& part, int64_t start, int64_t ranks,
                           int64_t rank) {
  const int64_t neighbours = ranks / part.groups;
  const int64_t per_group = part.size / part.groups;
  std::vector<int64_t> units(static_cast<size_t>(neighbours));
  for (int64_t i = 0, to = 0; i < per_group; i += part.unit) {
    ++units[static_cast<size_t>(to)];
    to = (to + 1) % neighbours;
  }
  int64_t before = 0;
  for (int64_t i = 0; i < rank % neighbours; ++i) {
    before += units[static_cast<size_t>(i)];
  }
  const int64_t own = units[static_cast<size_t>(rank % neighbours)];
  std::vector<int64_t> elements;
  for (int64_t i = 0; i < per_group; ++i) {
    const int64_t unit = i / part.unit;
    if (part.replicated || (before <= unit && unit < before + own)) {
      elements.push_back(start + rank / neighbours * per_group + i);
    }
  }
  return elements;
}

void ExpectAsDealt(const FusedPartition& partition) {
  for (int64_t rank = 0; rank < partition.ranks(); ++rank) {
    int64_t start = 0;
    int64_t local = 0;
    for (size_t i = 0; i < partition.parts().size(); ++i) {
      const auto part = static_cast<int64_t>(i);
      const std::vector<int64_t> expected =
          Dealt(partition.parts()[i], start, partition.ranks(), rank);
      const IndexRange range = partition.RangeOf(part, rank);
      ASSERT_EQ(range.size(), static_cast<int64_t>(expected.size()));
      if (!expected.empty()) {
        EXPECT_EQ(range.begin, expected.front());
        EXPECT_EQ(range.end, expected.back() + 1);
      }
      EXPECT_GE(range.begin, start);
      EXPECT_LE(range.end, start + partition.parts()[i].size);
      EXPECT_EQ(partition.LocalRange(part, rank),
                (IndexRange{local, local + range.size()}));
      EXPECT_EQ(partition.RangesOf(rank)[i], range);
      start += partition.parts()[i].size;
      local += range.size();
    }
    EXPECT_EQ(partition.SizeOf(rank), local);
    EXPECT_EQ(partition.size(), start);
  }
}

TEST(FusedPartitionTest, EverySmallOneIsAsDealtUnitByUnit) {
  for (int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (int64_t groups = 1; groups <= ranks; ++groups) {
      if (ranks % groups != 0) continue;
      for (int64_t per_group = 0; per_group <= 9; ++per_group) {
        for (int64_t unit = 1; unit <= 3; ++unit) {
          const FusedPart part = {per_group * groups, unit, groups, false};
          FusedPart whole = part;
          whole.replicated = true;
          ExpectAsDealt(Make({part, {.size = 5}, whole}, ranks));
        }
      }
    }
  }
}

// For attention each rank needs the kv head of each of its query heads.
TEST(QkvPartsTest, EveryRankHasTheKvHeadsOfItsQueryHeadsAndNoOthers) {
  constexpr int64_t kHead = 4;
  for (int64_t kv_heads = 1; kv_heads <= 8; ++kv_heads) {
    for (int64_t per_kv = 1; per_kv <= 5; ++per_kv) {
      for (int64_t ranks = 1; ranks <= 16; ++ranks) {
        const int64_t heads = kv_heads * per_kv;
        const auto parts = QkvParts(heads, kv_heads, kHead, ranks);
        if (kv_heads < ranks && ranks % kv_heads != 0) {
          EXPECT_THAT(parts, StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("must divide the ranks")));
          continue;
        }
        TESSERA_ASSERT_OK(parts);
        const FusedPartition qkv = Make(*parts, ranks);
        EXPECT_EQ(qkv.size(), (heads + 2 * kv_heads) * kHead);
        std::map<int64_t, int64_t> holders;  // For each query head.
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const IndexRange q = qkv.RangeOf(0, rank);
          const IndexRange k = qkv.RangeOf(1, rank);
          const IndexRange v = qkv.RangeOf(2, rank);
          EXPECT_EQ(q.size() % kHead, 0);
          EXPECT_EQ(k.size() % kHead, 0);
          EXPECT_EQ(v.begin - k.begin, kv_heads * kHead);
          EXPECT_EQ(v.size(), k.size());
          for (int64_t head = q.begin / kHead; head < q.end / kHead; ++head) {
            ++holders[head];
            const int64_t kv_head = heads + head / per_kv;
            EXPECT_TRUE(k.contains(kv_head * kHead));
          }
          if (kv_heads < ranks) {
            EXPECT_EQ(k.size(), kHead);
          }
        }
        EXPECT_EQ(static_cast<int64_t>(holders.size()), heads);
        for (const auto& [head, count] : holders) EXPECT_EQ(count, 1) << head;
      }
    }
  }
}

TEST(FusedPartitionTest, TheHeadersExampleHolds) {
  const FusedPartition qkv = Make(*QkvParts(8, 2, 64, 4), 4);
  EXPECT_THAT(qkv.RangesOf(1),
              ElementsAre(IndexRange{128, 256}, IndexRange{512, 576},
                          IndexRange{640, 704}));
  EXPECT_EQ(qkv.LocalRange(1, 1), (IndexRange{128, 192}));
}

TEST(GatedMlpPartsTest, GateAndUpAreCutAlike) {
  const FusedPartition mlp = Make(GatedMlpParts(10), 4);
  for (int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(mlp.RangeOf(0, rank).begin + 10, mlp.RangeOf(1, rank).begin);
    EXPECT_EQ(mlp.RangeOf(0, rank).size(), mlp.RangeOf(1, rank).size());
  }
}

TEST(FusedPartitionTest, PartsThatCannotBeAreRefused) {
  const auto refusal = [](std::vector<FusedPart> parts, int64_t ranks,
                          const char* says) {
    EXPECT_THAT(FusedPartition::Create(parts, ranks),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(says)));
  };
  refusal({}, 2, "0 parts over 2 ranks");
  refusal({{.size = 4}}, 0, "1 parts over 0 ranks");
  refusal({{.size = 4}, {.size = -1}}, 2, "part 1 has -1 elements");
  refusal({{.size = 4, .unit = 0}}, 2, "in units of 0");
  refusal({{.size = 4, .groups = 0}}, 2, "0 groups");
  refusal({{.size = 4, .groups = 2}}, 3,
          "must divide its 4 elements and the 3");
  refusal({{.size = 5, .groups = 2}}, 4, "must divide its 5 elements");
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  refusal({{.size = kMost}, {.size = 1}}, 2, "more than 2^63-1 elements");
}

TEST(QkvPartsTest, HeadsThatCannotBeAreRefused) {
  EXPECT_THAT(QkvParts(0, 1, 8, 1),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("all must be 1 or more")));
  EXPECT_THAT(QkvParts(6, 4, 8, 2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("4 kv heads do not divide"),
                             HasSubstr("6 query heads"))));
  EXPECT_THAT(
      QkvParts(int64_t{1} << 40, 1, int64_t{1} << 40, 1),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2^63-1")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
