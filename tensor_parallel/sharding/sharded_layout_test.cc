#include "tensor_parallel/sharding/sharded_layout.h"

#include <numeric>
#include <vector>

#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/sharding/testing/random_layouts.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// Divides a list of indices as a rule says, and returns one part.
std::vector<int64_t> PartOf(const std::vector<int64_t>& indices,
                            const PartitionRule& rule, int64_t parts,
                            int64_t part) {
  const auto size = static_cast<int64_t>(indices.size());
  std::vector<int64_t> counts(static_cast<size_t>(parts));
  if (rule.kind == PartitionRule::Kind::kUneven) {
    counts = rule.sizes;
  } else if (rule.kind == PartitionRule::Kind::kCeilChunks) {
    int64_t left = size;
    for (int64_t& count : counts) {
      count = std::min(left, (size + parts - 1) / parts);
      left -= count;
    }
  } else {
    // Deals blocks in turn; the last block of the dimension may be shorter.
    int64_t blocks = (size + rule.block - 1) / rule.block;
    for (size_t to = 0; blocks > 0; --blocks, to = (to + 1) % counts.size()) {
      counts[to] += rule.block;
    }
    int64_t left = size;
    for (int64_t& count : counts) {
      count = std::min(count, left);
      left -= count;
    }
  }
  const auto begin =
      indices.begin() +
      std::accumulate(counts.begin(), counts.begin() + part, int64_t{0});
  return {begin, begin + counts[static_cast<size_t>(part)]};
}

TEST(ShardedLayoutTest, BoxesAreAsDealtIndexByIndex) {
  for (const char* axes : {"tp4", "tp2,dp3", "tp2,cp3,dp2"}) {
    const topology::Mesh mesh = MeshOf(axes, topology::Rank(5));
    RandomLayouts random(7);
    for (int repeat = 0; repeat < 300; ++repeat) {
      const Dims shape = random.Shape();
      const ShardedLayout layout = random.Layout(mesh, shape);
      for (int64_t r = 0; r < mesh.world_size(); ++r) {
        const topology::Rank rank(5 + r);
        const Box box = layout.BoxOf(rank);
        for (size_t dim = 0; dim < shape.size(); ++dim) {
          std::vector<int64_t> indices(static_cast<size_t>(shape[dim]));
          std::iota(indices.begin(), indices.end(), 0);
          for (const Placement& placement : layout.placements()) {
            if (placement.dim != static_cast<int>(dim)) continue;
            indices = PartOf(indices, placement.rule,
                             mesh.SizeOf(placement.axis)->value(),
                             *mesh.CoordinateOf(rank, placement.axis));
          }
          ASSERT_EQ(box.ranges[dim].size(),
                    static_cast<int64_t>(indices.size()))
              << layout << " rank " << rank;
          if (!indices.empty()) {
            ASSERT_EQ(box.ranges[dim].begin, indices.front()) << layout;
          }
        }
      }
    }
  }
}

// [128, 512] over 4 ranks along dimension 0: rank 0 has rows 0 to 32.
TEST(ShardedLayoutTest, RowsOfFourRanks) {
  const ShardedLayout layout = LayoutOf(MeshOf("tp4"), {128, 512}, "tp:0");
  EXPECT_EQ(layout.BoxOf(topology::Rank(0)), (Box{{{0, 32}, {0, 512}}}));
  EXPECT_EQ(layout.BoxOf(topology::Rank(3)), (Box{{{96, 128}, {0, 512}}}));
  EXPECT_EQ(layout.BoxOf(topology::Rank(0)).shape(), (Dims{32, 512}));
  EXPECT_EQ(layout.ToString(), "[128,512] as tp:0");
}

TEST(ShardedLayoutTest, CommunicationIsRequiredUnlessReplicated) {
  const topology::Mesh mesh = MeshOf("tp4,dp1");
  const auto layout = [&](const char* placements) {
    return LayoutOf(mesh, {8, 8}, placements);
  };
  EXPECT_TRUE(layout("tp:1").is_sharded());
  EXPECT_TRUE(layout("tp:1").requires_communication());
  EXPECT_TRUE(layout("tp:sum").is_partial());
  EXPECT_FALSE(layout("tp:sum").is_sharded());
  EXPECT_TRUE(layout("tp:sum").requires_communication());
  EXPECT_FALSE(layout("replicated").requires_communication());
  EXPECT_FALSE(layout("dp:1").requires_communication());
}

TEST(ShardedLayoutTest, OrderMattersWithinADimensionOnly) {
  const topology::Mesh mesh = MeshOf("tp2,dp2");
  EXPECT_EQ(LayoutOf(mesh, {8, 8}, "tp:1,dp:0"),
            LayoutOf(mesh, {8, 8}, "dp:0,tp:1"));
  EXPECT_EQ(LayoutOf(mesh, {8, 8}, "tp:sum,dp:sum"),
            LayoutOf(mesh, {8, 8}, "dp:sum,tp:sum"));
  EXPECT_FALSE(LayoutOf(mesh, {8, 8}, "tp:0,dp:0") ==
               LayoutOf(mesh, {8, 8}, "dp:0,tp:0"));
}

TEST(ShardedLayoutTest, RejectsInvalidLayouts) {
  const topology::Mesh mesh = MeshOf("tp4,dp2");
  const auto expect = [&](const Dims& shape, Placements placements, auto says) {
    EXPECT_THAT(ShardedLayout::Create(mesh, shape, std::move(placements)),
                StatusIs(absl::StatusCode::kInvalidArgument, says));
  };
  expect({8, 8}, {{"tp", 2}},
         AllOf(HasSubstr("dimension 2 of a tensor of 2 dimensions"),
               HasSubstr("smaller")));
  expect({8, 8}, {{"tp", -2}}, HasSubstr("dimension -2"));
  expect({8, 8}, {{"xp", 0}}, HasSubstr("xp"));
  expect({8, 8}, {{"tp", 0}, {"tp", 1}}, HasSubstr("tp is placed twice"));
  expect({-1}, {}, HasSubstr("-1"));
  expect({3, 8}, {{"tp", 0}},
         AllOf(HasSubstr("dimension 0 has 3 elements for 4 ranks"),
               HasSubstr("fewer ranks")));
  // Chunks of 2: the last rank would have none.
  expect({6, 8}, {{"tp", 0, PartitionRule::CeilChunks()}},
         HasSubstr("some would have none"));
  expect({8, 8}, {{"tp", 0, PartitionRule::Uneven({4, 2, 1})}},
         AllOf(HasSubstr("4+2+1"), HasSubstr("give 4 sizes")));
  expect(
      {8, 8}, {{"dp", 0}, {"tp", 0, PartitionRule::Uneven({1, 1, 1, 1})}},
      AllOf(HasSubstr("axis tp has uneven sizes"), HasSubstr("give it first")));
  expect({8, 8}, {{"tp", 0, PartitionRule::Blocks(0)}},
         HasSubstr("blocks of 0"));
}

TEST(ShardedLayoutTest, AllowsEmptyShardsOnRequestAndInEmptyTensors) {
  const topology::Mesh mesh = MeshOf("tp4");
  TESSERA_EXPECT_OK(
      ShardedLayout::Create(mesh, {{3}}, {{"tp", 0}}, EmptyShards::kAllowed));
  TESSERA_EXPECT_OK(ShardedLayout::Create(mesh, {{0, 8}}, {{"tp", 0}}));
}

TEST(PlacementsTest, TextReadsBack) {
  for (const char* text : {"tp:1", "dp:0:ceil,tp:0,cp:sum", "tp:0:blocks4",
                           "tp:0:5+3+2+0", "replicated"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Placements placements,
                                 ParsePlacements(text));
    EXPECT_EQ(FormatPlacements(placements), text);
  }
}

TEST(PlacementsTest, RejectsInvalidText) {
  for (const char* text :
       {"", "tp", ":1", "tp:", "tp:x", "tp:-1", "tp:64", "tp:0:", "tp:0:even",
        "tp:sum:ceil", "tp:0:blocks0", "tp:0:blocks1", "tp:0:5+", "tp:0:-5+5",
        "tp:0,", "tp:99999999999"}) {
    EXPECT_THAT(ParsePlacements(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AnyOf(HasSubstr("allowed are balanced"),
                               HasSubstr("give an axis"))))
        << text;
  }
}

TEST(PlacementsFuzzTest, DamagedTextIsRejectedOrReadsBack) {
  TextMutator mutator({"dp:0:ceil,tp:0,cp:sum", "tp:1:5+3+2", "tp:0:blocks4"},
                      {",", ":", "sum", "ceil", "+", "blocks", "999999999999"},
                      /*seed=*/3);
  int valid = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto placements = ParsePlacements(mutator.Next());
    if (!placements.ok()) continue;
    ++valid;
    ASSERT_THAT(ParsePlacements(FormatPlacements(*placements)),
                IsOkAndHolds(*placements));
  }
  EXPECT_GT(valid, 100);
}

TEST(BoxTest, OffsetsAndContiguityAreThoseOfRowMajorElements) {
  const Box whole = {{{2, 5}, {0, 4}, {1, 3}}};
  for (const Box& part :
       {Box{{{3, 5}, {0, 4}, {1, 3}}}, Box{{{3, 4}, {1, 3}, {1, 3}}},
        Box{{{2, 4}, {0, 2}, {1, 3}}}, Box{{{4, 5}, {3, 4}, {2, 3}}},
        Box{{{2, 5}, {0, 4}, {2, 3}}}}) {
    std::vector<int64_t> numbers;
    int64_t number = 0;
    for (int64_t i = 2; i < 5; ++i) {
      for (int64_t j = 0; j < 4; ++j) {
        for (int64_t k = 1; k < 3; ++k, ++number) {
          if (part.ranges[0].contains(i) && part.ranges[1].contains(j) &&
              part.ranges[2].contains(k)) {
            numbers.push_back(number);
          }
        }
      }
    }
    EXPECT_EQ(OffsetIn(whole, part), numbers.front()) << part;
    EXPECT_EQ(IsContiguousIn(whole, part),
              numbers.back() - numbers.front() + 1 ==
                  static_cast<int64_t>(numbers.size()))
        << part;
  }
}

}  // namespace
}  // namespace tessera::tensor_parallel
