#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/engine/operation_context.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "tools/train/report/step_meter.h"

namespace tessera::train {
namespace {

constexpr int64_t kHour = int64_t{3600} * 1'000'000'000;

// The clock of rank r of each system is r hours ahead.
std::vector<int64_t> Offsets(const std::vector<std::string>& systems);

TEST(ClockOffsetTest, ProcessesOfOneSystemHaveOneClock) {
  EXPECT_FALSE(BootId().empty());
  for (int64_t offset : Offsets({"a", "a", "a"})) EXPECT_EQ(offset, 0);
}

TEST(ClockOffsetTest, AnotherSystemsClockIsMeasured) {
  const std::vector<int64_t> offsets = Offsets({"a", "b", "a", "c"});
  EXPECT_EQ(offsets[0], 0);
  EXPECT_EQ(offsets[2], 0);
  // Within ten seconds, even on a very busy machine.
  EXPECT_LT(std::abs(offsets[1] + kHour), kHour / 360);
  EXPECT_LT(std::abs(offsets[3] + 3 * kHour), kHour / 360);
}

TEST(ClockOffsetTest, OneRankIsItsOwnClock) { EXPECT_EQ(Offsets({"a"})[0], 0); }

std::vector<int64_t> Offsets(const std::vector<std::string>& systems) {
  std::vector<int64_t> offsets(systems.size(), -1);
  collectives::RunRanks(
      static_cast<int64_t>(systems.size()),
      [&](collectives::Communicator& world) -> absl::Status {
        const auto rank = static_cast<size_t>(world.rank().value());
        const auto ahead = static_cast<int64_t>(rank) * kHour;
        TESSERA_ASSIGN_OR_RETURN(offsets[rank],
                                 ClockOffset(world, systems[rank], [ahead] {
                                   return collectives::MonotonicNanos() + ahead;
                                 }));
        return absl::OkStatus();
      });
  return offsets;
}

}  // namespace
}  // namespace tessera::train
