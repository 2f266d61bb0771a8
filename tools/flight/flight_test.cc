#include "tools/flight/flight.h"

#include <filesystem>

#include "base/file.h"
#include "base/status_matchers.h"
#include "collectives/record/flight_recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/train/watch/rank_file.h"

namespace tessera::tools {
namespace {

namespace fs = std::filesystem;
using collectives::OperationRecord;
using collectives::OpKind;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int64_t kSecond = 1'000'000'000;

OperationRecord Done(uint64_t sequence, OpKind kind = OpKind::kAllReduce,
                     int64_t bytes = 64) {
  OperationRecord record;
  record.signature.sequence = sequence;
  record.signature.group = 5;
  record.signature.dtype = DType::kF32;
  record.signature.count = bytes / 4;
  record.signature.kind = record.kind = kind;
  record.bytes = bytes;
  record.begin_ns = 7 * kSecond;
  record.end_ns = 8 * kSecond;
  return record;
}

OperationRecord Running(uint64_t sequence, OpKind kind = OpKind::kAllReduce,
                        int64_t bytes = 64) {
  OperationRecord record = Done(sequence, kind, bytes);
  record.end_ns = 0;
  return record;
}

class FlightTest : public testing::Test {
 protected:
  FlightTest() : run_(testing::TempDir() + "/run") { fs::remove_all(run_); }

  // A file of a rank in a group of three, with the operations; the last one is
  // in its place, too.
  void Write(int64_t rank, const std::vector<OperationRecord>& operations,
             bool has_records = true, const std::string& attempt = "1") {
    const OperationRecord& last = operations.back();
    const auto begun = static_cast<int64_t>(last.signature.sequence);
    const train::LivePlace place = {
        .rank = rank,
        .pid = 10 + rank,
        .thread = 10 + rank,
        .action = train::RankAction::kForward,
        .step = 4,
        .since_ns = 7 * kSecond,
        .moved_ns = 8 * kSecond,
        .waiting_ns = last.end_ns == 0 ? 7 * kSecond : 0,
        .groups = {{.id = 5,
                    .name = "world",
                    .rank = rank,
                    .ranks = 3,
                    .begun = begun,
                    .ended = last.end_ns == 0 ? begun - 1 : begun,
                    .kind = last.kind,
                    .bytes = last.bytes,
                    .begin_ns = 7 * kSecond}}};
    std::vector<std::string> records;
    if (has_records) {
      records.push_back(collectives::RecordsToJson(
          {"world", "shared_memory", rank, 3, rank, 5}, operations, {},
          absl::OkStatus()));
    }
    TESSERA_ASSERT_OK(train::WriteRankFile(run_ + "/flight/" + attempt, place,
                                           10 * kSecond, records));
  }

  FlightReport Report() { return Merge(ReadFlight(run_).value()); }

  const std::string run_;
};

TEST_F(FlightTest, NamesRankBehind) {
  Write(0, {Done(6), Done(7), Running(8)});
  Write(1, {Done(6), Done(7)});
  Write(2, {Done(6), Done(7), Running(8)});
  const FlightReport report = Report();
  EXPECT_THAT(report.culprits, ElementsAre(1));
  EXPECT_THAT(report.missing, IsEmpty());
  ASSERT_THAT(report.groups, SizeIs(1));
  EXPECT_EQ(report.groups[0].completed, 7);
  ASSERT_TRUE(report.groups[0].mismatch.has_value());
  EXPECT_EQ(report.groups[0].mismatch->sequence, 8);
  EXPECT_THAT(report.groups[0].mismatch->ranks, ElementsAre(1));
  EXPECT_EQ(report.ranks[1].age_s, 2);
  EXPECT_EQ(report.ranks[0].waits_s, 3);
  const std::string conclusions =
      "rank 1 keeps others waiting and waits for none\n"
      "group world, #8: rank 1: not begun; ranks 0, 2: all_reduce, 64 bytes of "
      "f32, sum\n";
  EXPECT_EQ(FlightText(report, /*quiet=*/true), conclusions);
  EXPECT_EQ(
      FlightText(report, /*quiet=*/false),
      run_ +
          "/flight/1\n"
          "  rank 0: forward, step 5, for 3.0 s; in all_reduce #8 of world, "
          "64 bytes for 3.0 s, which waits for rank 1\n"
          "  rank 1: forward, step 5, for 3.0 s; last all_reduce #7 of "
          "world\n"
          "  rank 2: forward, step 5, for 3.0 s; in all_reduce #8 of world, "
          "64 bytes for 3.0 s, which waits for rank 1\n"
          "group world, ranks 0, 1, 2 of 3: last complete: #7 all_reduce, 64 "
          "bytes of f32, sum\n" +
          conclusions);
}

TEST_F(FlightTest, NamesRankWithAnotherCall) {
  Write(0, {Done(7), Running(8)});
  Write(1, {Done(7), Running(8, OpKind::kBroadcast)});
  Write(2, {Done(7), Running(8)});
  FlightReport report = Report();
  EXPECT_THAT(report.culprits, IsEmpty());
  EXPECT_EQ(report.groups[0].mismatch->difference, "another operation");
  EXPECT_THAT(report.groups[0].mismatch->ranks, ElementsAre(1));
  EXPECT_THAT(report.groups[0].mismatch->call, HasSubstr("broadcast, 64"));
  Write(1, {Done(7), Running(8, OpKind::kAllReduce, 128)});
  report = Report();
  EXPECT_EQ(report.groups[0].mismatch->difference, "another size");
}

// The first difference counts, not the last.
TEST_F(FlightTest, FindsEarliestMismatch) {
  Write(0, {Done(7), Done(8), Running(9)});
  Write(1, {Done(7), Running(8, OpKind::kAllGather)});
  Write(2, {Done(7), Done(8), Running(9)});
  EXPECT_EQ(Report().groups[0].mismatch->sequence, 8);
}

TEST_F(FlightTest, UsesPlaceOfRankThatCouldNotAnswer) {
  Write(0, {Done(7), Running(8)});
  Write(1, {Done(7)}, /*has_records=*/false);
  const FlightReport report = Report();
  EXPECT_FALSE(report.ranks[1].has_records);
  EXPECT_THAT(report.culprits, ElementsAre(1));
  EXPECT_EQ(report.groups[0].completed, 7);
  EXPECT_EQ(report.groups[0].mismatch->difference, "not begun");
  EXPECT_THAT(report.missing, ElementsAre(2));
  EXPECT_THAT(FlightText(report, true), HasSubstr("no file of rank 2\n"));
}

TEST_F(FlightTest, FindsNothingInHealthyRun) {
  for (const int64_t rank : {0, 1, 2}) Write(rank, {Done(7), Running(8)});
  const FlightReport report = Report();
  EXPECT_FALSE(report.groups[0].mismatch.has_value());
  EXPECT_EQ(FlightText(report, true), "no rank waits for another one\n");
}

TEST_F(FlightTest, ReadsNewestAttempt) {
  Write(0, {Done(1)}, true, "9");
  Write(0, {Done(2)}, true, "10");
  EXPECT_EQ(ReadFlight(run_).value().directory, run_ + "/flight/10");
  EXPECT_EQ(
      ReadFlight(run_ + "/flight/9").value().ranks[0].place.groups[0].begun, 1);
}

TEST_F(FlightTest, RefusesDirectoriesWithoutFilesAndDamagedFiles) {
  EXPECT_THAT(ReadFlight("/nonexistent"),
              StatusIs(absl::StatusCode::kInvalidArgument));
  fs::create_directories(run_);
  EXPECT_THAT(ReadFlight(run_), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("has no files rank")));
  Write(0, {Done(1)});
  fs::copy(run_ + "/flight/1/rank0.json", run_ + "/flight/1/rank1.json");
  EXPECT_THAT(ReadFlight(run_), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("a second file of rank 0")));
  TESSERA_ASSERT_OK(WriteFile(run_ + "/flight/1/rank1.json", "{"));
  EXPECT_THAT(ReadFlight(run_), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("rank1.json: ")));
}

TEST_F(FlightTest, PageAndJsonHaveTheSame) {
  Write(0, {Done(7), Running(8)});
  Write(1, {Done(7)});
  const FlightReport report = Report();
  EXPECT_THAT(FlightHtml(report),
              AllOf(HasSubstr("<li>rank 1 keeps others waiting"),
                    HasSubstr("rank 1: not begun"), Not(HasSubstr("<script"))));
  const nlohmann::ordered_json json = FlightJson(report);
  EXPECT_EQ(json["culprits"], nlohmann::ordered_json({1}));
  EXPECT_EQ(json["ranks"][0]["waits"]["for"], nlohmann::ordered_json({1}));
  EXPECT_EQ(json["groups"][0]["mismatch"]["sequence"], 8);
}

}  // namespace
}  // namespace tessera::tools
