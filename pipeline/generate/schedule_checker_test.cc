#include "pipeline/generate/schedule_checker.h"

#include <string>
#include <utility>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/schedule/csv.h"

namespace tessera::pipeline {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(std::string_view table) {
  return Execute(*ReadCsv(table)).error;
}

TEST(ScheduleCheckerTest, TimesAndMemoryAreThoseOfAHandDrawnPicture) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      ReadCsv("0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1I1,1W0,1W1\n"));
  const Execution run = Execute(schedule);
  EXPECT_EQ(run.error, "");
  EXPECT_EQ(run.makespan, 7);
  EXPECT_EQ(run.longest_span, 7);
  EXPECT_EQ(run.peaks, (std::vector<int64_t>{2, 2}));
}

TEST(ScheduleCheckerTest, APairStartsWhenBothAreReady) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      ReadCsv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n"));
  const Execution run = Execute(schedule);
  EXPECT_EQ(run.error, "");
  EXPECT_EQ(run.pairs, 1);
  EXPECT_EQ(run.makespan, 12);
}

TEST(ScheduleCheckerTest, WhatIsWrongIsFound) {
  EXPECT_EQ(ErrorOf("0F0,0B0\n1F0,1B0\n"), "");
  EXPECT_THAT(ErrorOf("0B0,0F0\n1F0,1B0\n"),
              "rank 0, position 0: 0B0 waits for ever");
  EXPECT_THAT(ErrorOf("0F0,0B0\n1F0,1F0,1B0\n"),
              HasSubstr("1F0 is there twice"));
  EXPECT_THAT(ErrorOf("0F0,0W0,0I0\n1F0,1B0\n"), HasSubstr("0W0 waits"));
  EXPECT_THAT(ErrorOf("0F0,0I0\n1F0,1B0\n"), "a micro-batch misses a stage");
  EXPECT_THAT(ErrorOf("0F0,0F1,0B0\n1F0,1F1,1B1,1B0\n"),
              "a micro-batch misses a stage");
  EXPECT_THAT(ErrorOf("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n"),
              HasSubstr("waits for ever"));
  Schedule wrong_rank = *ReadCsv("0F0,0B0\n1F0,1B0\n");
  std::swap(wrong_rank.ranks[0], wrong_rank.ranks[1]);
  EXPECT_THAT(Execute(wrong_rank).error, HasSubstr("no action of this rank"));
}

}  // namespace
}  // namespace tessera::pipeline
