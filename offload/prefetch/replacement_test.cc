#include "offload/prefetch/replacement.h"

#include <limits>
#include <map>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/prefetch/testing/brute_force.h"

namespace tessera::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<BlockUse> Uses(std::string_view keys, int64_t bytes = 1) {
  std::vector<BlockUse> order;
  for (const char key : keys) {
    order.push_back({.key = std::string(1, key), .bytes = bytes});
  }
  return order;
}

// Replays the decisions and checks each against the rules.
void CheckReplay(const RandomStep& input, const Replacement& r) {
  std::map<size_t, int64_t> busy;  // near block -> last use that holds it
  std::map<size_t, int64_t> dirty;
  int64_t used = 0;
  for (size_t b = 0; b < input.near.size(); ++b) {
    used += input.near[b].bytes;
    busy[b] = -1;
    if (input.near[b].dirty) dirty[b] = -1;
  }
  for (size_t i = 0; i < r.steps().size(); ++i) {
    const Replacement::Step& step = r.steps()[i];
    const auto use = static_cast<int64_t>(i);
    ASSERT_EQ(r.blocks()[step.block].key, input.order[i].key);
    for (const Replacement::Eviction& e : step.evict) {
      ASSERT_TRUE(busy.contains(e.block));
      ASSERT_LT(busy[e.block], use) << "evicts a block in use";
      ASSERT_EQ(e.after, busy[e.block]);
      ASSERT_EQ(e.store, dirty.contains(e.block)) << "drops a dirty block";
      if (e.store) {
        ASSERT_EQ(e.stored_after, dirty[e.block]);
      }
      busy.erase(e.block);
      dirty.erase(e.block);
      used -= r.blocks()[e.block].bytes;
    }
    const bool is_missing = !busy.contains(step.block);
    ASSERT_EQ(step.load, is_missing && !input.order[i].overwrite);
    if (is_missing) used += r.blocks()[step.block].bytes;
    ASSERT_LE(used, input.budget);
    int64_t& until = busy.try_emplace(step.block, -1).first->second;
    until = std::max(until, use + input.order[i].held);
    if (input.order[i].dirty) dirty[step.block] = use;
  }
  ASSERT_EQ(r.left().size(), busy.size());
}

TEST(ReplacementTest, EvictsTheFarthestNextUse) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Replacement r,
                               Replacement::Create(Uses("abcabdab"), 3, {}));
  EXPECT_EQ(r.loads(), 4);
  ASSERT_THAT(r.steps()[5].evict, SizeIs(1));
  EXPECT_EQ(r.blocks()[r.steps()[5].evict[0].block].key, "c");
}

TEST(ReplacementTest, KeepsFirstBlocksOfNextStep) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Replacement r,
                               Replacement::Create(Uses("abcdcba"), 2, {}));
  ASSERT_THAT(r.left(), SizeIs(2));
  std::vector<std::string> keys;
  for (const NearBlock& block : r.left()) keys.push_back(block.key);
  EXPECT_THAT(keys, ::testing::UnorderedElementsAre("a", "b"));
}

TEST(ReplacementTest, KeepsEverythingThatFits) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Replacement r,
                               Replacement::Create(Uses("abcabc"), 3, {}));
  EXPECT_EQ(r.loads(), 3);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Replacement warm, Replacement::Create(Uses("abcabc"), 3, r.left()));
  EXPECT_EQ(warm.loads(), 0);
}

TEST(ReplacementTest, SparesRecentlyUsedBlocks) {
  const std::vector<BlockUse> order = Uses("abcdef");
  for (const int64_t spare : {0, 1, 2, 5}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Replacement r,
                                 Replacement::Create(order, 3, {}, spare));
    for (size_t use = 3; use < order.size(); ++use) {
      ASSERT_THAT(r.steps()[use].evict, SizeIs(1));
      const auto idle =
          static_cast<int64_t>(use) - r.steps()[use].evict[0].after;
      EXPECT_EQ(idle > spare, spare < 3) << "use " << use;
    }
  }
}

TEST(ReplacementTest, EvictsBlocksToBeOverwrittenFirst) {
  std::vector<BlockUse> order = Uses("abcab");
  order[3].overwrite = true;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Replacement r,
                               Replacement::Create(order, 2, {}));
  EXPECT_EQ(r.loads(), 3);
  EXPECT_FALSE(r.steps()[3].load);
  ASSERT_THAT(r.steps()[2].evict, SizeIs(1));
  EXPECT_EQ(r.blocks()[r.steps()[2].evict[0].block].key, "a");
  ASSERT_THAT(r.steps()[3].evict, SizeIs(1));
  EXPECT_EQ(r.blocks()[r.steps()[3].evict[0].block].key, "c");
}

TEST(ReplacementTest, AcceptsEmptyOrder) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Replacement r,
                               Replacement::Create({}, 0, {}));
  EXPECT_THAT(r.steps(), IsEmpty());
}

TEST(ReplacementTest, IsOptimalForOneBlockSize) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 4000; ++round) {
    const RandomStep step =
        MakeRandomStep(random, {.keys = 5,
                                .uses = 12,
                                .most_held = 2,
                                .one_size = true,
                                .overwrites = round % 2 == 0});
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const Replacement r,
        Replacement::Create(step.order, step.budget, step.near));
    ASSERT_EQ(r.bytes_loaded(),
              BruteForceLeastBytes(step.order, step.budget, step.near).back());
  }
}

TEST(ReplacementTest, EveryDecisionKeepsTheRules) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 3000; ++round) {
    const RandomStep step =
        MakeRandomStep(random, {.keys = 12,
                                .uses = 60,
                                .most_bytes = 9,
                                .most_held = 3,
                                .dirty = true,
                                .overwrites = round % 2 == 0});
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const Replacement r,
        Replacement::Create(step.order, step.budget, step.near, round % 4));
    ASSERT_NO_FATAL_FAILURE(CheckReplay(step, r));
  }
}

TEST(ReplacementTest, NamesUseThatNeverFits) {
  EXPECT_THAT(Replacement::Create(Uses("ab", 11), 10, {}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("use 0 of block \"a\""),
                             HasSubstr("more than the whole near memory"))));
  std::vector<BlockUse> held = Uses("ab", 6);
  held[0].held = 1;
  EXPECT_THAT(Replacement::Create(held, 10, {}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("use 1 of block \"b\""),
                             HasSubstr("held by blocks in use"))));
}

TEST(ReplacementTest, RejectsInvalidOrders) {
  std::vector<BlockUse> two_sizes = Uses("aa");
  two_sizes[1].bytes = 2;
  std::vector<BlockUse> negative = Uses("a");
  negative[0].compute_ns = -1;
  std::vector<BlockUse> huge =
      Uses("aba", std::numeric_limits<int64_t>::max() / 2);
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (const auto& [order, budget] :
       std::vector<std::pair<std::vector<BlockUse>, int64_t>>{
           {two_sizes, 9}, {negative, 9}, {huge, most}, {Uses("a"), -1}}) {
    EXPECT_THAT(Replacement::Create(order, budget, {}),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  const std::vector<NearBlock> twice = {{"a", 1}, {"a", 1}};
  EXPECT_THAT(Replacement::Create({}, 9, twice),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("must be unique")));
  const std::vector<NearBlock> large = {{"a", 6}, {"b", 6}};
  EXPECT_THAT(Replacement::Create({}, 9, large),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("3 of 9 bytes are free")));
}

}  // namespace
}  // namespace tessera::offload
