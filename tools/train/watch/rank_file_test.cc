#include "tools/train/watch/rank_file.h"

#include "base/file.h"
#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "collectives/record/flight_recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string Written() {
  const collectives::OperationRecord record = {
      .signature = {.sequence = 8,
                    .count = 16,
                    .group = 5,
                    .kind = collectives::OpKind::kAllReduce,
                    .dtype = DType::kF32},
      .kind = collectives::OpKind::kAllReduce,
      .bytes = 64,
      .begin_ns = 70};
  const LivePlace place = {.rank = 3,
                           .pid = 12,
                           .thread = 13,
                           .action = RankAction::kBackward,
                           .microbatch = 2,
                           .step = 5,
                           .file = "a.cc",
                           .line = 7,
                           .since_ns = 60,
                           .moved_ns = 61,
                           .waiting_ns = 62,
                           .groups = {{.id = 5,
                                       .name = "tp",
                                       .rank = 1,
                                       .ranks = 2,
                                       .begun = 8,
                                       .ended = 7,
                                       .kind = collectives::OpKind::kAllReduce,
                                       .bytes = 64,
                                       .begin_ns = 70,
                                       .peer = -1}},
                           .stack = {"main \xff"}};
  const std::vector<std::string> records = {collectives::RecordsToJson(
      {.name = "tp", .engine = "mpi", .rank = 1, .ranks = 2, .id = 5},
      {&record, 1}, {}, absl::OkStatus())};
  const std::string directory = testing::TempDir() + "/new/flight";
  TESSERA_EXPECT_OK(WriteRankFile(directory, place, 99, records));
  return ReadFile(directory + "/rank3.json", kMaxRankFileBytes).value();
}

TEST(RankFileTest, ReadsWhatWasWritten) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const RankFile file, ParseRankFile(Written()));
  EXPECT_EQ(file.written_ns, 99);
  EXPECT_EQ(file.place.rank, 3);
  EXPECT_EQ(file.place.action, RankAction::kBackward);
  EXPECT_EQ(file.place.step, 5);
  EXPECT_EQ(file.place.waiting_ns, 62);
  EXPECT_THAT(file.place.stack, ElementsAre("main \xEF\xBF\xBD"));
  ASSERT_THAT(file.place.groups, SizeIs(1));
  EXPECT_TRUE(file.place.groups[0].runs());
  EXPECT_EQ(file.place.groups[0].kind, collectives::OpKind::kAllReduce);
  ASSERT_THAT(file.groups, SizeIs(1));
  EXPECT_EQ(file.groups[0].id, 5);
  ASSERT_THAT(file.groups[0].operations, SizeIs(1));
  const FlightOperation& operation = file.groups[0].operations[0];
  EXPECT_EQ(operation.sequence, 8);
  EXPECT_EQ(operation.operation, "all_reduce");
  EXPECT_EQ(operation.bytes, 64);
  EXPECT_TRUE(operation.runs);
}

TEST(RankFileTest, RejectsOtherTextWithTheField) {
  EXPECT_THAT(ParseRankFile(""), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ParseRankFile("{}"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank")));
  std::string text = Written();
  const size_t at = text.find("\"backward\"");
  text.replace(at, 10, "\"sideward\"");
  EXPECT_THAT(ParseRankFile(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("place.action")));
  EXPECT_THAT(ParseRankFile(
                  std::string(static_cast<size_t>(kMaxRankFileBytes) + 1, ' ')),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(RankFileTest, SurvivesDamagedFiles) {
  TextMutator mutator({Written()},
                      {"{", "]", "\"rank\":", "-1", "null", "1e999", "\\u"},
                      /*seed=*/7);
  int rejected = 0;
  for (int i = 0; i < 20000; ++i) {
    rejected += ParseRankFile(mutator.Next()).ok() ? 0 : 1;
  }
  EXPECT_GT(rejected, 10000);
}

}  // namespace
}  // namespace tessera::train
