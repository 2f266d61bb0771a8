#include "tools/schedule/report.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generate.h"
#include "pipeline/schedule/schedule_text.h"

namespace tessera::tools {
namespace {

using ::testing::HasSubstr;

ScheduleOptions Options(std::vector<std::string> schedules, int64_t stages,
                        int64_t microbatches) {
  ScheduleOptions options;
  options.schedules = std::move(schedules);
  options.shape.stages = stages;
  options.shape.microbatches = microbatches;
  return options;
}

std::string WriteTemporary(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

TEST(ReportTest, ClosedFormsHold) {
  ScheduleOptions options = Options({"gpipe", "1f1b"}, 4, 8);
  options.costs.times = "2,3,1";
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto reports, MakeReports(options));
  ASSERT_EQ(reports.size(), 2u);
  for (const ScheduleReport& report : reports) {
    EXPECT_THAT(report.validity, IsOk());
    EXPECT_EQ(report.timeline->makespan, (8 + 3) * 6);
    EXPECT_NEAR(report.timeline->BubbleRate(), 3.0 / 11, 1e-12);
    EXPECT_LE(*report.lower_bound, report.timeline->longest_stage);
    EXPECT_GE(*report.gap(), 0);
  }
}

// Through the first stage's forwards of 1F1B's warm-up, then whichever the
// makespan waits for; the times of the path without gaps add up to it.
TEST(ReportTest, TheCriticalPathAddsUpToTheMakespan) {
  ScheduleOptions options = Options({"1f1b"}, 2, 2);
  options.costs.times = "1,2,0";
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto reports, MakeReports(options));
  EXPECT_EQ(reports[0].timeline->makespan, 9);
  EXPECT_THAT(reports[0].critical_path,
              ::testing::ElementsAre("0F0", "1F0", "1B0", "1F1", "1B1", "0B1"));
}

TEST(ReportTest, EveryNameMakesAValidSchedule) {
  for (const std::string& name : ScheduleNames()) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto reports,
                                 MakeReports(Options({name}, 4, 12)));
    EXPECT_THAT(reports[0].validity, IsOk());
    EXPECT_EQ(reports[0].name, name);
    EXPECT_EQ(reports[0].schedule.map.ranks(), 4);
    EXPECT_EQ(reports[0].schedule.map.stages(), 4 * reports[0].chunks);
    EXPECT_FALSE(reports[0].critical_path.empty());
    EXPECT_GE(*reports[0].gap(), 0) << name;
  }
}

// The published figures of arXiv 2401.10241, to four digits.
TEST(ReportTest, PublishedBubbleRatesAreReachedOrBeaten) {
  ScheduleOptions options = Options({"1f1b", "zb_1p", "zb_2p"}, 8, 24);
  options.costs.times = "18.522,18.086,9.337,0.601";
  options.costs.memory = "201216,-127488,-73728";
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto reports, MakeReports(options));
  EXPECT_NEAR(reports[0].timeline->BubbleRate(), 0.2431, 0.003);
  EXPECT_LE(reports[1].timeline->BubbleRate(), 0.15855);
  EXPECT_LE(reports[2].timeline->BubbleRate(), 0.04335);
  EXPECT_EQ(reports[1].memory_limit, 8 * 201216);
  EXPECT_EQ(reports[2].memory_limit, 16 * 201216);
  for (const ScheduleReport& report : reports) {
    EXPECT_TRUE(report.over_limit.empty());
  }
}

TEST(ReportTest, ReportsRanksOverMemoryLimit) {
  ScheduleOptions options = Options({"gpipe", "1f1b"}, 4, 8);
  options.memory_limit = 4;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto reports, MakeReports(options));
  EXPECT_EQ(reports[0].over_limit, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_TRUE(reports[1].over_limit.empty());
}

TEST(ReportTest, LoweredScheduleHasMessages) {
  ScheduleOptions options = Options({"1f1b"}, 2, 3);
  EXPECT_THAT(pipeline::WriteCsv((*MakeReports(options))[0].schedule),
              Not(HasSubstr("SEND")));
  options.lowered = true;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto reports, MakeReports(options));
  EXPECT_THAT(pipeline::WriteCsv(reports[0].schedule), HasSubstr("0SEND_F0"));
  EXPECT_THAT(reports[0].timeline.has_value(), true);
}

TEST(ReportTest, FilesRoundTrip) {
  for (const pipeline::Generator& generator : pipeline::Generators()) {
    ScheduleOptions options = Options({std::string(generator.name)}, 4, 10);
    for (const bool lowered : {false, true}) {
      options.lowered = lowered;
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto made, MakeReports(options));
      for (const bool json : {false, true}) {
        ScheduleOptions input;
        input.input = WriteTemporary(
            "schedule", json ? pipeline::WriteJson(made[0].schedule)
                             : pipeline::WriteCsv(made[0].schedule));
        TESSERA_ASSERT_OK_AND_ASSIGN(const auto read, MakeReports(input));
        ASSERT_EQ(read.size(), 1u);
        EXPECT_THAT(read[0].validity, IsOk());
        EXPECT_EQ(read[0].schedule.ranks, made[0].schedule.ranks);
        EXPECT_EQ(read[0].schedule.map, made[0].schedule.map);
        EXPECT_EQ(read[0].chunks, made[0].chunks);
        EXPECT_EQ(read[0].timeline->makespan, made[0].timeline->makespan);
      }
    }
  }
}

TEST(ReportTest, AFileIsComparedWithSchedulesOfItsCounts) {
  ScheduleOptions options;
  options.input = WriteTemporary(
      "compared",
      absl::StrCat(
          "\xef\xbb\xbf",  // A byte order mark.
          pipeline::WriteCsv(*pipeline::Generate("zb_h1", {3, 1, 7}))));
  options.schedules = {"1f1b"};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto reports, MakeReports(options));
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[1].schedule.map.ranks(), 3);
  EXPECT_EQ(reports[1].schedule.microbatches, 7);
  options.shape.stages = 4;
  EXPECT_THAT(MakeReports(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--stages=4: the schedule of --input has 3")));
}

TEST(ReportTest, ReportsInvalidSchedule) {
  ScheduleOptions options;
  options.input = WriteTemporary("wrong", "0F0,0B0\n1B0,1F0\n");
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto reports, MakeReports(options));
  EXPECT_THAT(reports[0].validity,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 1, action 0 (1B0)")));
  EXPECT_FALSE(reports[0].timeline.has_value());
  EXPECT_EQ(reports[0].schedule.ranks.size(), 2u);
  for (const char* text : {"0F0,zz\n", "{\"ranks\":1}", "{", "{\"valid\":1}",
                           "{\"valid\":true,\"map\":[],\"ranks\":{}}"}) {
    options.input = WriteTemporary("no_schedule", text);
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto none, MakeReports(options));
    EXPECT_THAT(none[0].validity,
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("no_schedule")));
  }
}

TEST(ReportTest, ReportsDeadlock) {
  ScheduleOptions options;
  options.input =
      WriteTemporary("deadlock",
                     "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                     "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto reports, MakeReports(options));
  EXPECT_THAT(reports[0].validity, StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("deadlock: ")));
}

TEST(ReportTest, ErrorsNameFlagValueAndAllowedRange) {
  using Change = std::function<void(ScheduleOptions&)>;
  const std::vector<std::pair<Change, std::string>> cases = {
      {[](auto& o) { o.schedules = {"2f2b"}; },
       "--schedule=2f2b: expected auto, zb_1p"},
      {[](auto& o) { o.schedules = {""}; }, "--schedule=: expected"},
      {[](auto& o) { o.shape.stages = 0; },
       "--stages=0: expected a number from 1 to 4096"},
      {[](auto& o) { o.shape.microbatches = -3; }, "--microbatches=-3: expect"},
      {[](auto& o) { o.shape.chunks = 65; },
       "--chunks=65: expected a number from 1 to 64"},
      {[](auto& o) { o.shape.chunks = -1; }, "--chunks=-1"},
      {[](auto& o) {
         o.schedules = {"1f1b"};
         o.shape.chunks = 2;
       },
       "--chunks=2: 1f1b has 1"},
      {[](auto& o) {
         o.shape.stages = 4096;
         o.shape.microbatches = 1 << 20;
       },
       "--microbatches=1048576: with 8192 stages"},
      {[](auto& o) { o.memory_limit = -1; }, "--memory_limit=-1: expected"},
      {[](auto& o) {
         o.schedules = {"dualpipe"};
         o.shape.stages = 3;
       },
       "--schedule=dualpipe: "},
      {[](auto& o) {
         o.schedules = {"auto"};
         o.memory_limit = 1;
         o.costs.memory = "10,-5,-5";
       },
       "--schedule=auto: "},
  };
  for (const auto& [change, message] : cases) {
    ScheduleOptions options = Options({"interleaved_1f1b"}, 4, 8);
    change(options);
    EXPECT_THAT(
        MakeReports(options),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }
  ScheduleOptions missing;
  missing.input = "no_such_file.csv";
  EXPECT_THAT(MakeReports(missing), StatusIs(absl::StatusCode::kNotFound,
                                             HasSubstr("no_such_file.csv")));
}

}  // namespace
}  // namespace tessera::tools
