#include "pipeline/passes/split_stages.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generate.h"
#include "pipeline/passes/add_communication.h"
#include "pipeline/passes/place_parameters.h"
#include "pipeline/proof/testing/schedules.h"
#include "pipeline/proof/validate.h"
#include "pipeline/schedule/schedule_text.h"

namespace tessera::pipeline {

namespace {

using ::testing::HasSubstr;

TEST(SplitStagesTest, ReplacesStagesByTheirParts) {
  const std::vector<int64_t> parts = {3, 2};
  const auto split = SplitStages(FromCsv("0F0,1F0,1I0,0B0,1W0\n"), parts);
  ASSERT_THAT(split, IsOk());
  EXPECT_EQ(WriteCsv(*split),
            "0F0,1F0,2F0,3F0,4F0,4I0,3I0,2B0,1B0,0B0,4W0,3W0\n");
}

TEST(SplitStagesTest, PairsBecomePairsOfParts) {
  Schedule schedule = FromCsv("0F0,1F0,(0F1;1B0)OVERLAP_F_B,1F1,0B0,1B1,0B1\n");
  const std::vector<int64_t> parts = {3, 2};
  const auto split = SplitStages(schedule, parts);
  ASSERT_THAT(split, IsOk());
  EXPECT_THAT(
      WriteCsv(*split),
      HasSubstr("4F0,(0F1;4B0)OVERLAP_F_B,(1F1;3B0)OVERLAP_F_B,2F1,3F1"));
}

// Every generator's schedule stays valid, keeps its messages, and survives a
// round trip through text.
TEST(SplitStagesTest, AnySplitOfAnyScheduleIsValid) {
  std::mt19937_64 random(3);
  for (const Generator& generator : Generators()) {
    for (const int64_t ranks : {1, 2, 4}) {
      if (generator.even_ranks && ranks % 2 != 0) continue;
      const int64_t chunks = generator.chunks == 0 ? 2 : generator.chunks;
      const auto schedule = Generate(
          generator.name,
          {.ranks = ranks, .chunks = chunks, .microbatches = 2 * ranks});
      ASSERT_THAT(schedule, IsOk()) << generator.name;
      std::vector<int64_t> parts;
      for (int64_t s = 0; s < schedule->map.stages(); ++s) {
        parts.push_back(static_cast<int64_t>(1 + random() % 4));
      }
      const auto split = SplitStages(*schedule, parts);
      ASSERT_THAT(split, IsOk());
      for (const ReducePlacement reduce : {ReducePlacement::kLastMicroBatch,
                                           ReducePlacement::kEachMicroBatch}) {
        const auto placed = PlaceParameters(*split, {.reduce = reduce});
        ASSERT_THAT(placed, IsOk());
        const auto lowered = AddCommunication(*placed);
        ASSERT_THAT(lowered, IsOk()) << generator.name;
        const auto proof = Validate(*lowered);
        ASSERT_THAT(proof, IsOk()) << generator.name;
        EXPECT_EQ(proof->messages,
                  Validate(*AddCommunication(*schedule))->messages);
      }
      const auto from_json = ReadJson(WriteJson(*split));
      ASSERT_THAT(from_json, IsOk());
      EXPECT_EQ(*from_json, *split);
      const auto from_csv = ReadCsv(WriteCsv(*split), split->name);
      ASSERT_THAT(from_csv, IsOk());
      EXPECT_EQ(*from_csv, *split);
    }
  }
}

TEST(SplitStagesTest, OmitsStagesWithoutParts) {
  std::mt19937_64 random(3);
  const std::pair<const char*, int64_t> cases[] = {
      {"gpipe", 1}, {"1f1b", 1},     {"interleaved_1f1b", 2}, {"zb_h1", 1},
      {"zb_v", 2},  {"dualpipe", 1}, {"dualpipev", 2}};
  for (const auto& [name, chunks] : cases) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const Schedule schedule,
        Generate(name, {.ranks = 4, .chunks = chunks, .microbatches = 5}));
    for (int round = 0; round < 20; ++round) {
      std::vector<int64_t> parts(static_cast<size_t>(schedule.map.stages()));
      for (int64_t& part : parts) part = static_cast<int64_t>(random() % 3);
      parts.front() += 1;
      int64_t sum = 0;
      for (const int64_t part : parts) sum += part;
      TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule split,
                                   SplitStages(schedule, parts));
      EXPECT_EQ(split.map.stages(), sum);
      EXPECT_EQ(split.map.ranks(), 4);
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const Schedule placed,
          PlaceParameters(split, {.prefetch = 1,
                                  .reduce = ReducePlacement::kEachMicroBatch}));
      TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule lowered,
                                   AddCommunication(placed));
      EXPECT_THAT(Validate(lowered), IsOk()) << name << WriteCsv(lowered);
    }
  }
}

TEST(SplitStagesTest, RejectsMisuse) {
  const auto refuses = [](const char* part) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(part));
  };
  const Schedule schedule = FromCsv("0F0,1F0,1B0,0B0\n");
  const std::vector<int64_t> one = {1}, less = {1, -1}, none = {0, 0},
                             two = {2, 2};
  EXPECT_THAT(SplitStages(schedule, one),
              refuses("for 1 stages; the map has 2"));
  EXPECT_THAT(SplitStages(schedule, less), refuses("stage 1 in -1 parts"));
  EXPECT_THAT(SplitStages(schedule, none),
              refuses("at least one needs a part"));
  EXPECT_THAT(SplitStages(*PlaceParameters(schedule), two),
              refuses("(0UNSHARD): only a schedule of computations"));
  Schedule wrong = schedule;
  wrong.ranks[0].back().with_next = true;
  EXPECT_THAT(SplitStages(wrong, two), refuses("but is the last"));
  wrong = schedule;
  wrong.ranks[0][0].stage = 5;
  EXPECT_THAT(SplitStages(wrong, two), refuses("stages 0 to 1"));
}

}  // namespace

}  // namespace tessera::pipeline
