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
            "round_robin, zb_1p, zb_2p");
}

TEST(ScheduleKindTest, EveryDemandCanBeMet) {
  for (const auto& [name, kind] : EnumNames<ScheduleKind>::kTable) {
    const ScheduleTraits traits = TraitsOf(kind);
    EXPECT_GE(traits.min_chunks, 1) << name;
    EXPECT_LE(traits.min_chunks, traits.max_chunks) << name;
  }
}

// What the generators make of them is held against this table in
// tools/schedule_names.
TEST(ScheduleKindTest, KnowsWhatEachScheduleAsks) {
  for (const ScheduleKind one :
       {ScheduleKind::kGpipe, ScheduleKind::k1F1B, ScheduleKind::kZbH1,
        ScheduleKind::kZbH2, ScheduleKind::kDualPipe}) {
    EXPECT_EQ(TraitsOf(one).min_chunks, 1) << EnumName(one);
    EXPECT_EQ(TraitsOf(one).max_chunks, 1) << EnumName(one);
  }
  for (const ScheduleKind two :
       {ScheduleKind::kZbV, ScheduleKind::kVHalf, ScheduleKind::kVMin,
        ScheduleKind::kDualPipeV}) {
    EXPECT_EQ(TraitsOf(two).min_chunks, 2) << EnumName(two);
    EXPECT_EQ(TraitsOf(two).max_chunks, 2) << EnumName(two);
  }
  for (const ScheduleKind any :
       {ScheduleKind::kInterleaved1F1B, ScheduleKind::kLoopedBfs,
        ScheduleKind::kAuto, ScheduleKind::kSequential,
        ScheduleKind::kRoundRobin, ScheduleKind::kZb1p, ScheduleKind::kZb2p,
        static_cast<ScheduleKind>(99)}) {
    EXPECT_EQ(TraitsOf(any).min_chunks, 1) << EnumName(any);
    EXPECT_EQ(TraitsOf(any).max_chunks, ScheduleTraits::kNoLimit)
        << EnumName(any);
  }
  for (const auto& [name, kind] : EnumNames<ScheduleKind>::kTable) {
    EXPECT_EQ(TraitsOf(kind).even_pp, kind == ScheduleKind::kDualPipe) << name;
  }
}

}  // namespace
}  // namespace tessera::topology
