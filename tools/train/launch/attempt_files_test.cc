#include "tools/train/launch/attempt_files.h"

#include <filesystem>
#include <random>

#include "absl/time/time.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::HasSubstr;
using ::testing::IsNull;
using ::testing::SizeIs;

AttemptFiles FilesHere(const std::string& name) {
  return {testing::TempDir() + "/" + name};
}

TEST(AttemptFilesTest, ReadsReportsByRank) {
  const AttemptFiles files = FilesHere("reports");
  TESSERA_ASSERT_OK(files.Make());
  const RankReport third = {3, 17, absl::DataLossError("two\nlines")};
  const RankReport first = {1, 18, absl::AbortedError("")};
  TESSERA_ASSERT_OK(files.WriteReport(third));
  TESSERA_ASSERT_OK(files.WriteReport(first));
  EXPECT_THAT(files.ReadReports(8), testing::ElementsAre(first, third));
  EXPECT_THAT(files.ReadReports(3), testing::ElementsAre(first));
}

TEST(AttemptFilesTest, ReadsRounds) {
  const AttemptFiles files = FilesHere("rounds");
  TESSERA_ASSERT_OK(files.Make());
  EXPECT_EQ(files.ReadRound(2), 0);
  TESSERA_ASSERT_OK(files.WriteRound(2, 7));
  EXPECT_EQ(files.ReadRound(2), 7);
  for (const char* damaged : {"", "x", "7 x", "7 8"}) {
    TESSERA_ASSERT_OK(WriteFile(files.round(2), damaged));
    EXPECT_EQ(files.ReadRound(2), 0) << damaged;
  }
}

TEST(AttemptFilesTest, RemovesReport) {
  const AttemptFiles files = FilesHere("removed");
  TESSERA_ASSERT_OK(files.Make());
  TESSERA_ASSERT_OK(files.WriteReport({1, 18, absl::AbortedError("")}));
  files.RemoveReport(0);
  EXPECT_THAT(files.ReadReports(2), SizeIs(1));
  files.RemoveReport(1);
  EXPECT_THAT(files.ReadReports(2), SizeIs(0));
}

TEST(AttemptFilesTest, ALongMessageIsCut) {
  const AttemptFiles files = FilesHere("long");
  TESSERA_ASSERT_OK(files.Make());
  TESSERA_ASSERT_OK(files.WriteReport(
      {0, 1, absl::InternalError(std::string(100'000, 'x'))}));
  const auto reports = files.ReadReports(1);
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_THAT(reports[0].status.message(), SizeIs(4096));
}

TEST(AttemptFilesTest, DamagedReportNamesRank) {
  const AttemptFiles files = FilesHere("damaged");
  TESSERA_ASSERT_OK(files.Make());
  TESSERA_ASSERT_OK(WriteFile(files.report(2), "nonsense"));
  const auto reports = files.ReadReports(4);
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].rank, 2);
  EXPECT_THAT(std::string(reports[0].status.message()),
              HasSubstr("rank 2 failed"));
}

TEST(AttemptFilesTest, MakeRemovesOldFiles) {
  const AttemptFiles files = FilesHere("again");
  TESSERA_ASSERT_OK(files.Make());
  files.MarkStep();
  TESSERA_ASSERT_OK(files.WriteReport({0, 1, absl::InternalError("old")}));
  EXPECT_TRUE(files.TookAStep());
  TESSERA_ASSERT_OK(files.Make());
  EXPECT_FALSE(files.TookAStep());
  EXPECT_THAT(files.ReadReports(1), SizeIs(0));
  files.Remove();
  EXPECT_FALSE(std::filesystem::exists(files.directory));
  EXPECT_FALSE(AttemptFiles{"/proc/no/such"}.Make().ok());
}

TEST(ParseReportTest, MutatedTextsAreReportsOrErrors) {
  std::mt19937_64 random(1);
  const std::string valid =
      FormatReport({1, 123456789, absl::InternalError("why")});
  for (int round = 0; round < 20'000; ++round) {
    std::string text = valid;
    for (uint64_t edits = 1 + random() % 4; edits > 0; --edits) {
      if (text.empty()) break;
      const size_t at = random() % text.size();
      if (random() % 3 == 0) {
        text.erase(at, 1 + random() % 5);
      } else {
        text[at] = static_cast<char>(random());
      }
    }
    const auto report = ParseReport(1, text);
    if (report.ok()) {
      EXPECT_FALSE(report->status.ok());
      EXPECT_EQ(*ParseReport(1, FormatReport(*report)), *report);
    } else {
      EXPECT_TRUE(absl::IsInvalidArgument(report.status()));
      EXPECT_FALSE(report.status().message().empty());
    }
  }
}

TEST(AttemptFilesTest, EndingRoundTripsAndIgnoresDamage) {
  const AttemptFiles files = {testing::TempDir() + "/ending"};
  TESSERA_ASSERT_OK(files.Make());
  EXPECT_FALSE(files.ReadEnding().has_value());
  const AttemptFiles::Ending ending = {
      2, {3, 0, absl::AbortedError("rank 3 (pid 7) was killed")}};
  TESSERA_ASSERT_OK(files.WriteEnding(ending));
  ASSERT_TRUE(files.ReadEnding().has_value());
  EXPECT_EQ(files.ReadEnding()->round, 2);
  EXPECT_EQ(files.ReadEnding()->cause, ending.cause);
  for (const char* const text :
       {"", "2", "2 3", "x 3 10 0\nwhy", "2 3 99 0\n"}) {
    TESSERA_ASSERT_OK(WriteFile(files.ending(), text));
    EXPECT_FALSE(files.ReadEnding().has_value()) << text;
  }
  files.Remove();
}

TEST(FindCauseTest, PrefersOriginalErrorOverConsequences) {
  const RankReport lost = {0, 1, absl::UnavailableError("rank 3 is gone")};
  const RankReport broken = {1, 2, absl::AbortedError("rank 3: disk full")};
  const RankReport own = {3, 5, absl::ResourceExhaustedError("disk full")};
  const RankReport later = {2, 6, absl::InternalError("odd")};
  const std::vector<RankReport> all = {lost, broken, later, own};
  EXPECT_EQ(*FindCause(all), own);
  EXPECT_EQ(*FindCause({broken, lost}), lost);
  EXPECT_THAT(FindCause({}), IsNull());
  EXPECT_EQ(NameRank(own).message(), "rank 3: disk full");
  EXPECT_EQ(NameRank({3, 1, NameRank(own)}), NameRank(own));
  EXPECT_TRUE(MayBeConsequence(lost.status));
  EXPECT_FALSE(MayBeConsequence(own.status));
}

}  // namespace
}  // namespace tessera::train
