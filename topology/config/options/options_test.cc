#include <cstdint>
#include <set>
#include <string>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "topology/config/options/schedule_kind.h"
#include "topology/config/options/strategies.h"

namespace tessera::topology {
namespace {

template <typename Enum>
class OptionsTest : public ::testing::Test {};

using Options = ::testing::Types<MemoryStrategy, CommunicationStrategy,
                                 Precision, ScheduleKind>;
TYPED_TEST_SUITE(OptionsTest, Options);

TYPED_TEST(OptionsTest, NamesAndValuesAreOneToOneAndInOrder) {
  std::set<std::string_view> names;
  int64_t expected = 0;
  for (const auto& [name, value] : EnumNames<TypeParam>::kTable) {
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_EQ(static_cast<int64_t>(value), expected++) << name;
    EXPECT_EQ(EnumName(value), name);
    EXPECT_THAT(ParseEnum<TypeParam>(name), IsOkAndHolds(value));
  }
}

TEST(ScheduleKindTest, HasTheSchedulesOfTheField) {
  EXPECT_EQ(AllowedNames<ScheduleKind>(),
            "gpipe, 1f1b, interleaved_1f1b, looped_bfs, zb_h1, zb_h2, zb_v, "
            "v_half, v_min, dualpipe, dualpipev, auto, sequential, "
            "round_robin");
}

TEST(ScheduleKindTest, EveryDemandCanBeMet) {
  for (const auto& [name, kind] : EnumNames<ScheduleKind>::kTable) {
    const ScheduleTraits traits = TraitsOf(kind);
    EXPECT_GE(traits.min_chunks, 1) << name;
    EXPECT_LE(traits.min_chunks, traits.max_chunks) << name;
    EXPECT_GE(traits.micro_batches_multiple, 1) << name;
    EXPECT_GE(traits.min_micro_batches_per_rank, 0) << name;
  }
}

TEST(ScheduleKindTest, KnowsWhatEachScheduleAsks) {
  EXPECT_EQ(TraitsOf(ScheduleKind::k1F1B).max_chunks, 1);
  EXPECT_EQ(TraitsOf(ScheduleKind::kInterleaved1F1B).min_chunks, 2);
  EXPECT_TRUE(TraitsOf(ScheduleKind::kInterleaved1F1B).micro_batches_by_pp);
  EXPECT_EQ(TraitsOf(ScheduleKind::kZbV).max_chunks, 2);
  EXPECT_TRUE(TraitsOf(ScheduleKind::kDualPipe).even_pp);
  EXPECT_FALSE(TraitsOf(ScheduleKind::kDualPipeV).even_pp);
  EXPECT_EQ(TraitsOf(static_cast<ScheduleKind>(99)).min_chunks, 1);
}

}  // namespace
}  // namespace tessera::topology
