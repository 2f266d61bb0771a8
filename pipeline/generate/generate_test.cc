#include "pipeline/generate/generate.h"

#include <limits>
#include <string>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/testing/every_shape.h"
#include "pipeline/generate/testing/schedule_checker.h"
#include "pipeline/schedule/schedule_text.h"

namespace tessera::pipeline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GenerateTest, ListsGenerators) {
  EXPECT_THAT(GeneratorNames(),
              ElementsAre("sequential", "gpipe", "round_robin", "1f1b",
                          "interleaved_1f1b", "looped_bfs", "zb_h1", "zb_h2",
                          "zb_v", "v_half", "v_min", "dualpipe", "dualpipev"));
}

TEST(GenerateTest, EveryMicroBatchPassesEveryStageForEveryShape) {
  for (const Generator& generator : Generators()) {
    for (const PipelineShape& shape : EveryShape(generator.chunks)) {
      if (generator.even_ranks && shape.ranks % 2 == 1) continue;
      TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                   Generate(generator.name, shape));
      ASSERT_EQ(schedule.name, generator.name);
      ASSERT_EQ(schedule.microbatches, shape.microbatches);
      ASSERT_EQ(schedule.map.ranks(), shape.ranks);
      ASSERT_EQ(schedule.map.stages(), shape.ranks * shape.chunks);
      ASSERT_EQ(Execute(schedule).error, "") << generator.name << ": " << shape;
    }
  }
}

// Neither the order nor the memory may depend on the times.
TEST(GenerateTest, NeitherOrderNorMemoryDependsOnTimes) {
  const UnitTimes times = {
      .forward = 1, .backward = 40, .backward_input = 3, .backward_weight = 17};
  for (const Generator& generator : Generators()) {
    const int64_t chunks = generator.chunks > 0 ? generator.chunks : 3;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 Generate(generator.name, {6, chunks, 17}));
    const Execution run = Execute(schedule, times);
    EXPECT_EQ(run.error, "") << generator.name;
    EXPECT_EQ(run.peaks, Execute(schedule).peaks) << generator.name;
  }
}

TEST(GenerateTest, TablesRoundTrip) {
  for (const Generator& generator : Generators()) {
    for (const PipelineShape& shape : EveryShape(generator.chunks)) {
      if (generator.even_ranks && shape.ranks % 2 == 1) continue;
      if (shape.microbatches > 9) continue;
      TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                   Generate(generator.name, shape));
      TESSERA_ASSERT_OK_AND_ASSIGN(Schedule again,
                                   ReadCsv(WriteCsv(schedule), generator.name));
      // A single micro-batch does not reveal that a map is two-way.
      if (shape.microbatches == 1) again.map = schedule.map;
      ASSERT_EQ(again, schedule) << generator.name << ": " << shape;
    }
  }
}

TEST(GenerateTest, ManyRanksAndMicroBatches) {
  for (const Generator& generator : Generators()) {
    const int64_t chunks = generator.chunks > 0 ? generator.chunks : 2;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 Generate(generator.name, {64, chunks, 200}));
    EXPECT_EQ(Execute(schedule).error, "") << generator.name;
  }
}

TEST(GenerateTest, RejectsUnknownNameAndListsKnownOnes) {
  EXPECT_THAT(Generate("zb_h3", {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("\"zb_h3\""),
                             HasSubstr("zb_h1, zb_h2, zb_v, v_half"))));
  EXPECT_THAT(Generate(std::string(1000, 'x'), {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(std::string(40, 'x') + "\"")));
}

TEST(GenerateTest, EveryGeneratorRejectsInvalidShapes) {
  for (const Generator& generator : Generators()) {
    const auto generate = generator.generate;
    const int64_t fixed = generator.chunks;
    const int64_t chunks = fixed > 0 ? fixed : 1;
    const auto refusal = [&](std::string_view what) {
      return StatusIs(absl::StatusCode::kInvalidArgument,
                      AllOf(HasSubstr(std::string(generator.name)),
                            HasSubstr(std::string(what))));
    };
    EXPECT_THAT(generate({0, chunks, 4}), refusal("for 0 ranks"));
    EXPECT_THAT(generate({2, 0, 4}), refusal("2 ranks, 0 chunks"));
    EXPECT_THAT(generate({2, chunks, 0}), refusal("1 micro-batches work"));
    EXPECT_THAT(generate({2, chunks, -7}), refusal("-7 micro-batches"));
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    EXPECT_THAT(generate({kMost, chunks, 1}), refusal("work"));
    EXPECT_THAT(generate({2, chunks, kMost}), refusal("micro-batches work"));
    EXPECT_THAT(generate({2, kMost, 2}), refusal("work"));
    EXPECT_THAT(generate({int64_t{1} << 24, chunks, 1}), refusal("work"));
    if (fixed > 0) {
      EXPECT_THAT(generate({2, fixed + 1, 4}),
                  refusal("chunks = " + std::to_string(fixed) + " works"));
    }
    if (generator.even_ranks) {
      EXPECT_THAT(generate({5, chunks, 4}), refusal("4 or 6 ranks work"));
      EXPECT_THAT(generate({1, chunks, 4}), refusal("; 2 ranks work"));
    }
  }
}

}  // namespace
}  // namespace tessera::pipeline
