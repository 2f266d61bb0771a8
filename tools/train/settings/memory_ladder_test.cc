#include "tools/train/settings/memory_ladder.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tools/train/settings/check_settings.h"
#include "tools/train/settings/offload_choice.h"

namespace tessera::train {
namespace {

using topology::MemoryStrategy;

// 1000 initially; each change saves some, as in a run with many micro-batches.
absl::StatusOr<int64_t> Need(const Settings& settings) {
  int64_t needed = 1000;
  if (settings.recompute == "selective") needed -= 50;
  if (settings.recompute == "full") needed -= 100;
  if (settings.zero == 3) needed -= 200;
  if (settings.reduce == "each") needed -= 100;
  if (settings.zero == 3 && settings.gather_ahead == 0) needed -= 20;
  const OffloadChoice offload = OffloadChoice::Of(settings.offload);
  if (offload.gradients) needed += 10;  // Near memory.
  if (offload.activations && !settings.offload_dir.empty()) needed -= 50;
  if (settings.compression != "none") needed += 5;
  if (!settings.offload_dir.empty()) needed -= 300;
  return needed;
}

Settings StageOne() {
  Settings settings;
  settings.zero = 1;
  settings.offload = "none";
  return settings;
}

absl::StatusOr<MemoryRung> Climb(const Settings& from, LadderUse use,
                                 int64_t enough, PredictNeed predict = Need) {
  return ClimbMemoryLadder(
      from, use, "/scratch", predict,
      [&](const MemoryRung& rung) { return rung.needed <= enough; });
}

struct Case {
  int64_t enough;
  MemoryStrategy strategy;
  std::string flags;
};

void ExpectRungs(const Settings& from, LadderUse use,
                 const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const MemoryRung rung,
                                 Climb(from, use, c.enough));
    SCOPED_TRACE(c.enough);
    EXPECT_EQ(rung.strategy, c.strategy);
    EXPECT_EQ(rung.flags, c.flags);
    EXPECT_EQ(rung.needed, *Need(rung.settings));
    EXPECT_EQ(rung.as_given, *Need(from));
    TESSERA_EXPECT_OK(CheckSettings(rung.settings));
  }
}

TEST(MemoryLadderTest, StopsAtLowestSufficientRung) {
  const std::vector<Case> cases = {
      {1000, MemoryStrategy::kBasic, ""},
      {999, MemoryStrategy::kStandard, "--recompute=selective"},
      {949, MemoryStrategy::kStandard, "--recompute=full"},
      {899, MemoryStrategy::kAggressive, "--recompute=full --zero=3"},
      {699, MemoryStrategy::kAggressive,
       "--recompute=full --zero=3 --reduce=each"},
      {599, MemoryStrategy::kAggressive,
       "--recompute=full --zero=3 --reduce=each --gather_ahead=0"},
      {579, MemoryStrategy::kExtreme,
       "--recompute=full --zero=3 --reduce=each --gather_ahead=0 --offload=all "
       "--offload_dir=/scratch"},
      {289, MemoryStrategy::kExtreme,
       "--recompute=full --zero=3 --reduce=each --gather_ahead=0 "
       "--offload=all,activations --offload_dir=/scratch"}};
  ExpectRungs(StageOne(), LadderUse::kBeforeStart, cases);
  ExpectRungs(StageOne(), LadderUse::kWhileRunning, cases);
}

TEST(MemoryLadderTest, PrefersReductionInEachMicroBatchIfAllowed) {
  Settings settings = StageOne();
  settings.zero = 2;
  ExpectRungs(settings, LadderUse::kBeforeStart,
              {{999, MemoryStrategy::kStandard, "--reduce=each"},
               {899, MemoryStrategy::kStandard,
                "--recompute=selective --reduce=each"}});
}

// Saving 4 of 1000 bytes is not worth a rung; saving 4 of 400 is.
TEST(MemoryLadderTest, RungSavesAtLeastOnePercent) {
  Settings settings = StageOne();
  settings.zero = 2;
  const auto need = [](const Settings& settings) -> absl::StatusOr<int64_t> {
    return (settings.zero == 3 ? 400 : 1000) -
           (settings.reduce == "each" ? 4 : 0);
  };
  for (const auto& [enough, flags] :
       std::vector<std::pair<int64_t, std::string>>{
           {999, "--zero=3"},
           {399, "--zero=3 --reduce=each"},
           {1, "--zero=3 --reduce=each"}}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const MemoryRung rung,
        Climb(settings, LadderUse::kBeforeStart, enough, need));
    EXPECT_EQ(rung.flags, flags) << enough;
    EXPECT_EQ(rung.strategy, MemoryStrategy::kAggressive);
  }
}

// For example because the run already reduces in each micro-batch.
TEST(MemoryLadderTest, SkipsRungsThatSaveNothing) {
  const auto need = [](const Settings& settings) -> absl::StatusOr<int64_t> {
    return settings.zero == 3 ? 700 : 1000;
  };
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const MemoryRung rung,
      Climb(StageOne(), LadderUse::kWhileRunning, 1, need));
  EXPECT_EQ(rung.flags, "--zero=3");
  EXPECT_EQ(rung.strategy, MemoryStrategy::kAggressive);
}

TEST(MemoryLadderTest, HasNoRungLeftAtTop) {
  Settings settings = StageOne();
  settings.zero = 3;
  settings.recompute = "full";
  settings.reduce = "each";
  settings.gather_ahead = 0;
  settings.offload = "all,activations";
  settings.offload_dir = "/mine";
  ExpectRungs(settings, LadderUse::kWhileRunning,
              {{1, MemoryStrategy::kBasic, ""}});
}

// Only while running, only from host memory, and not combined with others.
TEST(MemoryLadderTest, TriesCompressionAlone) {
  Settings settings = StageOne();
  settings.zero = 3;
  settings.recompute = "full";
  settings.reduce = "each";
  settings.gather_ahead = 0;
  settings.offload = "all";
  const Case compressed = {1, MemoryStrategy::kAggressive,
                           "--compression=lossless"};
  const Case in_files = {300, MemoryStrategy::kExtreme,
                         "--offload_dir=/scratch"};
  ExpectRungs(settings, LadderUse::kBeforeStart, {in_files});
  ExpectRungs(settings, LadderUse::kWhileRunning, {compressed});
  settings.compression = "lossless";
  ExpectRungs(settings, LadderUse::kWhileRunning, {in_files});
  settings.compression = "none";
  settings.recompute = "none";
  ExpectRungs(settings, LadderUse::kWhileRunning,
              {{300, MemoryStrategy::kExtreme,
                "--recompute=full --offload_dir=/scratch"}});
}

TEST(MemoryLadderTest, SkipsRungsRejectedByPrediction) {
  const auto need = [](const Settings& settings) -> absl::StatusOr<int64_t> {
    if (settings.zero == 3) return absl::InvalidArgumentError("the schedule");
    return Need(settings);
  };
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const MemoryRung rung,
      Climb(StageOne(), LadderUse::kBeforeStart, 1, need));
  EXPECT_EQ(rung.flags, "--recompute=full");
  const auto fails = [](const Settings& settings) -> absl::StatusOr<int64_t> {
    if (settings.zero == 3) return absl::InternalError("broken");
    return Need(settings);
  };
  EXPECT_THAT(Climb(StageOne(), LadderUse::kBeforeStart, 1, fails),
              StatusIs(absl::StatusCode::kInternal));
}

TEST(MemoryLadderTest, StrategyIsTheLowestRung) {
  Settings settings = StageOne();
  EXPECT_EQ(AtLowestRung(settings, "/scratch"), settings);
  const auto with = [&](MemoryStrategy strategy) {
    settings.parallel.memory_strategy = strategy;
    const Settings rung = AtLowestRung(settings, "/scratch");
    TESSERA_EXPECT_OK(CheckSettings(rung));
    EXPECT_EQ(AtLowestRung(rung, "/scratch"), rung);
    return rung;
  };
  Settings expected = settings;
  expected.parallel.memory_strategy = MemoryStrategy::kStandard;
  expected.recompute = "full";  // Stage 1 cannot reduce each micro-batch.
  EXPECT_EQ(with(MemoryStrategy::kStandard), expected);
  expected.parallel.memory_strategy = MemoryStrategy::kAggressive;
  expected.zero = 3;
  expected.reduce = "each";
  expected.gather_ahead = 0;
  expected.offload = "all";
  EXPECT_EQ(with(MemoryStrategy::kAggressive), expected);
  expected.parallel.memory_strategy = MemoryStrategy::kExtreme;
  expected.offload = "all,activations";
  expected.offload_dir = "/scratch";
  EXPECT_EQ(with(MemoryStrategy::kExtreme), expected);

  settings.parallel.memory_strategy = MemoryStrategy::kAggressive;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const MemoryRung rung,
      Climb(AtLowestRung(settings, "/scratch"), LadderUse::kBeforeStart, 590));
  EXPECT_EQ(rung.strategy, MemoryStrategy::kAggressive);
  EXPECT_EQ(rung.flags, "");
}

TEST(MemoryLadderTest, LimitsTolerateInexactPredictions) {
  EXPECT_TRUE(FitsMemoryLimit(100, 105));
  EXPECT_FALSE(FitsMemoryLimit(100, 104));
  EXPECT_FALSE(ExceedsMemoryLimit(980, 1000));
  EXPECT_TRUE(ExceedsMemoryLimit(981, 1000));
  // A prediction that fits and is wrong by at most 2 % does not exceed the
  // limit.
  for (int64_t limit = 1000; limit < 3000; ++limit) {
    int64_t needed = limit;
    while (!FitsMemoryLimit(needed, limit)) --needed;
    EXPECT_FALSE(ExceedsMemoryLimit(needed + needed / 50, limit)) << limit;
  }
}

TEST(MemoryLadderTest, FilesGoBelowTheRunDirectory) {
  Settings settings;
  settings.run_dir = "/run";
  EXPECT_EQ(ScratchOf(settings), "/run/offload");
  settings.run_dir = "";
  EXPECT_NE(ScratchOf(settings), "");
}

}  // namespace
}  // namespace tessera::train
