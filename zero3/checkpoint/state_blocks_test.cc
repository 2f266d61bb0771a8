#include "zero3/checkpoint/state_blocks.h"

#include <map>
#include <random>
#include <tuple>

#include "gtest/gtest.h"
#include "zero3/layout/testing/models.h"

namespace tessera::zero3 {
namespace {

using offload::MomentFormat;

// Over all ranks, each element of each part is in exactly one block; no block
// exceeds the limit or splits a block of the moments.
TEST(PlanBlocksTest, CoversEachElementOfEachPartOnce) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 400; ++round) {
    const ModelParameters model = RandomModel(random);
    const MomentFormat moments =
        round % 2 == 0 ? MomentFormat::F32() : MomentFormat::Blockwise8(64);
    LayoutOptions options = RandomLayoutOptions(random);
    if (moments.block > 0) options.alignment = 64;
    const auto limit = static_cast<int64_t>(1 + random() % 130);
    const StateLayout layout = *StateLayout::Create(model, options);
    std::map<std::tuple<ParameterId, StatePart, int64_t>, int> seen;
    for (int64_t rank = 0; rank < layout.ranks(); ++rank) {
      const auto blocks =
          PlanBlocks({layout, topology::Rank(rank)}, moments, limit);
      for (const BlockRange& range : blocks) {
        ASSERT_GT(range.size(), 0);
        ASSERT_LE(range.size(),
                  moments.block > 0 ? (limit + 63) / 64 * 64 : limit);
        ASSERT_EQ(range.format,
                  StateFormatOf(model[range.parameter], moments, range.part));
        if (range.format.block > 0) {
          ASSERT_EQ(range.begin % 64, 0);
          ASSERT_TRUE(range.end % 64 == 0 ||
                      range.end == model[range.parameter].elements);
        }
        for (int64_t e = range.begin; e < range.end; ++e) {
          ASSERT_EQ(++seen[std::tuple(range.parameter, range.part, e)], 1);
        }
      }
    }
    size_t expected = 0;
    for (const ModelParameter& parameter : model.all()) {
      for (const StatePart part : kAllStateParts) {
        if (!StateFormatOf(parameter, moments, part)) continue;
        expected += static_cast<size_t>(parameter.elements);
      }
    }
    ASSERT_EQ(seen.size(), expected);
  }
}

}  // namespace
}  // namespace tessera::zero3
