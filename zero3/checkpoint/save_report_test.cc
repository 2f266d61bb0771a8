#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/checkpoint_writer.h"

namespace tessera::zero3 {
namespace {

using ::testing::HasSubstr;

SaveReport ReportOf(std::string part, int64_t rank, int64_t ranks,
                    bool writes = true) {
  return {.step = 20,
          .part = std::move(part),
          .shard_rank = rank,
          .shard_ranks = ranks,
          .writes = writes,
          .file = {.bytes = 100 + rank, .crc32c = 7, .index_crc32c = 8}};
}

TEST(SaveReportTest, ReadsBack) {
  SaveReport report = ReportOf("tp0", 2, 3, false);
  report.status = absl::DataLossError("\"quotes\"\n");
  report.description = "{\"a\": [1]}";
  EXPECT_THAT(ParseReport(FormatReport(report)), IsOkAndHolds(report));
  EXPECT_THAT(ParseReport(FormatReport({})), IsOkAndHolds(SaveReport()));
}

TEST(SaveReportTest, RejectsOtherText) {
  for (const char* text : {"", "[]", "{}", "{\"code\": 17}", "{\"code\": 0"}) {
    EXPECT_THAT(ParseReport(text),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST(SaveReportTest, EachShardOfEachPartHasOneWriter) {
  EXPECT_THAT(CheckReports({ReportOf("", 0, 2), ReportOf("", 1, 2)}), IsOk());
  EXPECT_THAT(CheckReports({ReportOf("a", 0, 1), ReportOf("b", 1, 2),
                            ReportOf("b", 0, 2), ReportOf("b", 0, 2, false),
                            ReportOf("b", 1, 2, false)}),
              IsOk());
}

// Of ranks in this order.
void ExpectRefused(std::vector<SaveReport> reports,
                   const std::string& message) {
  for (size_t i = 0; i < reports.size(); ++i) {
    reports[i].rank = static_cast<int64_t>(i);
  }
  EXPECT_THAT(
      CheckReports(reports),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(message)));
}

TEST(SaveReportTest, NamesInconsistentRanks) {
  SaveReport later = ReportOf("", 1, 2);
  later.step = 21;
  ExpectRefused({ReportOf("", 0, 2), later},
                "rank 1 saves step 21, rank 0 step 20");
  ExpectRefused({ReportOf("", 0, 1), ReportOf("", 0, 1)},
                "rank 1 and rank 0 both write shard 0");
  ExpectRefused({ReportOf("", 0, 2)}, "only 1 of its 2 shards are written");
  ExpectRefused({ReportOf("", 0, 2), ReportOf("", 1, 3)},
                "rank 1 shards it over 3 ranks, rank 0 over 2");
}

TEST(SaveReportTest, ManifestListsPartsAndFilesInOrder) {
  const ModelParameters model =
      *ModelParameters::Builder().Add({.name = "a", .shape = {5}}).Build();
  const StateLayout layout = *StateLayout::Create(model, {.ranks = 2});
  std::vector<SaveReport> reports = {
      ReportOf("y", 1, 2), ReportOf("x", 1, 2, false), ReportOf("x", 0, 2),
      ReportOf("y", 0, 2), ReportOf("x", 0, 2, false), ReportOf("x", 1, 2)};
  reports[2].description = *FormatPart({.name = "x", .layout = layout});
  reports[3].description = *FormatPart({.name = "y", .layout = layout});
  TESSERA_ASSERT_OK_AND_ASSIGN(const CheckpointManifest manifest,
                               ManifestOf(reports, /*world=*/6));
  EXPECT_EQ(manifest.step, 20);
  EXPECT_EQ(manifest.world, 6);
  ASSERT_EQ(manifest.parts.size(), 2u);
  EXPECT_EQ(manifest.parts[0].name, "x");
  EXPECT_EQ(manifest.parts[0].replicas, 2);
  EXPECT_EQ(manifest.parts[1].replicas, 1);
  for (const CheckpointPart& part : manifest.parts) {
    ASSERT_EQ(part.files.size(), 2u);
    EXPECT_EQ(part.files[0].bytes, 100);
    EXPECT_EQ(part.files[1].bytes, 101);
  }
  EXPECT_THAT(FormatManifest(manifest), IsOk());
}

}  // namespace
}  // namespace tessera::zero3
