#include "pipeline/schedule/schedule_text.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::pipeline {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CsvTest, RoundTripsPyTorchTable) {
  // Interleaved zero-bubble on two ranks, in PyTorch's format.
  const std::string table =
      "0F0,0F1,2F0,2F1,,2I0,2W0\n"
      ",1F0,1F1,3F0,3B0,3F1\n";
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule, ReadCsv(table, "zb"));
  EXPECT_EQ(schedule.name, "zb");
  EXPECT_EQ(schedule.microbatches, 2);
  EXPECT_EQ(schedule.map, *StageMap::Loop(2, 2));
  ASSERT_EQ(schedule.ranks.size(), 2u);
  EXPECT_EQ(schedule.ranks[1][3], (Action{ActionKind::kBackward, 3, 0}));
  // Empty cells are ignored.
  EXPECT_EQ(WriteCsv(schedule),
            "0F0,0F1,2F0,2F1,2I0,2W0\n1F0,1F1,3F0,3B0,3F1\n");
}

TEST(CsvTest, RoundTripsLoweredSchedulesAndPairs) {
  const std::string table =
      "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0I0,0W0,0REDUCE_GRAD,0RESHARD\n"
      "1RECV_F0,1F0,1B0,1SEND_B0\n";
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule, ReadCsv(table));
  EXPECT_EQ(WriteCsv(schedule), table);
  const std::string pairs = "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n";
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule overlapped, ReadCsv(pairs));
  EXPECT_EQ(overlapped.ranks[0].size(), 4u);
  EXPECT_TRUE(overlapped.ranks[0][1].with_next);
  EXPECT_EQ(WriteCsv(overlapped), pairs);
  const std::string exchanges =
      "0F0,0SEND_F0,0F1,(0SEND_F1;0RECV_B0),0B0\n"
      "1RECV_F0,1F0,1B0,(1SEND_B0;1RECV_F1)\n";
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule fused, ReadCsv(exchanges));
  EXPECT_TRUE(fused.ranks[0][3].with_next);
  EXPECT_TRUE(fused.ranks[1][3].with_next);
  EXPECT_EQ(WriteCsv(fused), exchanges);
}

TEST(CsvTest, InfersStageMap) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule v, ReadCsv("0F0,3F0\n1F0,2F0\n"));
  EXPECT_EQ(v.map, *StageMap::Zigzag(2, 2));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule both,
                               ReadCsv("0F0,1F1\n1F0,0F1\n"));
  EXPECT_EQ(both.map, *StageMap::TwoWay(2));
  EXPECT_EQ(both.RankOf(0, 0), 0);
  EXPECT_EQ(both.RankOf(0, 1), 1);
}

TEST(CsvTest, DescribesErrors) {
  const struct {
    const char* table;
    const char* message;
  } kCases[] = {
      {"", "a schedule of 0 stages"},
      {"0F0,1X0", "line 1, cell 2: \"1X0\""},
      {"0F0\n1F0,,0F", "line 2, cell 3"},
      {"0F0\n2F0", "stage 1 is computed by no rank"},
      {"0F0,0F2\n0F1,1F0", "stage 0 is computed by ranks 0 and 1"},
      {"0F0,1F0\n0F1",
       "stage 1 is computed by rank 0 alone, in a two-way table"},
      {"0F0\n\n1F0", "line 2 computes nothing"},
      {"0F0\n1RECV_F0", "line 2 computes nothing"},
      {"0F0,1F1\n1F0,0F1,0F2", "1F1 belongs to rank 1"},
  };
  for (const auto& [table, message] : kCases) {
    EXPECT_THAT(ReadCsv(table), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr(message)))
        << table;
  }
}

constexpr char kText[] = R"({
  "schedule": "1f1b",
  "stages": 2,
  "microbatches": 1,
  "map": {"ranks": [0, 1], "two_way": false},
  "ranks": [
    ["0F0", "0B0"],
    ["1F0", "1B0"]
  ]
}
)";

TEST(JsonTest, RoundTripsDocumentOfHeader) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule, ReadJson(kText));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule same,
                               ReadCsv("0F0,0B0\n1F0,1B0\n", "1f1b"));
  EXPECT_EQ(schedule, same);
  EXPECT_EQ(WriteJson(schedule), kText);
}

TEST(JsonTest, KeysMayComeInAnyOrder) {
  EXPECT_THAT(
      ReadJson(R"({"ranks":[["0F0","0B0"],["1F0","1B0"]],"microbatches":1,
                   "map":{"two_way":false,"ranks":[0,1]},"stages":2,
                   "schedule":"1f1b"})"),
      IsOkAndHolds(*ReadJson(kText)));
}

TEST(JsonTest, KeepsFieldsThatTablesLose) {
  // A two-way map with one micro-batch, a rank without actions, and
  // micro-batches that no rank computes.
  Schedule schedule;
  schedule.name = "\"odd\"\n\xc3\xa9";
  schedule.map = *StageMap::TwoWay(2);
  schedule.microbatches = 7;
  schedule.ranks = {{{ActionKind::kForward, 0, 0}}, {}};
  EXPECT_THAT(ReadJson(WriteJson(schedule)), IsOkAndHolds(schedule));
  schedule.map = *StageMap::Of({1, 0, 0, 1});
  schedule.microbatches = 0;
  schedule.ranks = {{{ActionKind::kUnshard, 3, kNoMicroBatch}}, {}};
  EXPECT_THAT(ReadJson(WriteJson(schedule)), IsOkAndHolds(schedule));
}

TEST(JsonTest, RoundTripsLoweredSchedulesAndPairs) {
  for (const char* table :
       {"0UNSHARD,0F0,0SEND_F0,0RECV_B0,0I0,0W0,0REDUCE_GRAD,0RESHARD\n"
        "1RECV_F0,1F0,1B0,1SEND_B0\n",
        "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n",
        "0F0,(0SEND_F0;0RECV_B1),0B0\n1F0,1F1,(1RECV_F0;1SEND_B1)\n",
        "0F0,1F1\n1F0,0F1\n"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule, ReadCsv(table));
    EXPECT_THAT(ReadJson(WriteJson(schedule)), IsOkAndHolds(schedule));
  }
}

TEST(JsonTest, ReplacesInvalidUtf8InName) {
  Schedule schedule = *ReadJson(kText);
  schedule.name = "a\xff";
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule again,
                               ReadJson(WriteJson(schedule)));
  EXPECT_EQ(again.name, "a\xef\xbf\xbd");
}

TEST(JsonTest, DescribesErrors) {
  const struct {
    const char* from;
    std::string to;
    const char* message;
  } kCases[] = {
      {"\"1f1b\"", "3", "schedule is 3; use a text"},
      {"\"1f1b\"", "null", "schedule is null"},
      {"\"1f1b\"", absl::StrCat("\"", std::string(257, 'x'), "\""),
       "a name of 257 bytes"},
      {"\"stages\": 2", "\"stages\": 2.5", "stages is 2.5; use a whole number"},
      {"\"stages\": 2", "\"stages\": 0",
       "stages is 0; use a whole number from 1 to"},
      {"\"stages\": 2", "\"stages\": 1048577", "stages is 1048577"},
      {"\"stages\": 2", "\"stages\": 99999999999999999999",
       "stages is 1e+20; use a whole number"},
      {"\"stages\": 2", "\"stages\": 18446744073709551615",
       "stages is 18446744073709551615"},
      {"\"stages\": 2", "\"stages\": 3", "map.ranks has 2 entries for 3"},
      {"\"microbatches\": 1", "\"microbatches\": -1", "microbatches is -1"},
      {"\"microbatches\": 1", "\"microbatches\": 0",
       "ranks[0] has 0F0; there are 2 stages and 0 micro-batches"},
      {"\"stages\"", "\"Stages\"",
       "Stages is an unknown key; the keys are schedule, stages"},
      {"\"stages\": 2,", "", "stages is missing"},
      {"\"stages\": 2,", "\"stages\": 2, \"stages\": 2,", "comes twice"},
      {"\"two_way\": false", "\"two_ways\": false",
       "map.two_ways is an unknown key; the keys are ranks, two_way"},
      {", \"two_way\": false", "", "map.two_way is missing"},
      {"\"two_way\": false", "\"two_way\": 1",
       "map.two_way is 1; use true or false"},
      {"[0, 1]", "[0, 0]", "ranks has 2 lists; the map has 1 ranks"},
      {"[0, 1]", "[0, -1]", "map.ranks[1] is -1"},
      {"[0, 1]", "[0, 9]", "rank 9 of a stage"},
      {"[0, 1]", "[0, [1]]", "map.ranks[1] is an array; use a whole number"},
      {"\"1F0\"", "\"1X0\"", "ranks[1][0]: \"1X0\" is not an action"},
      {"\"1B0\"", "\"\"", "ranks[1][1] is empty"},
      {"\"1B0\"", "7", "ranks[1][1] is 7; use a string"},
      {"\"1B0\"", "[\"1B0\"]", "ranks[1][1] is an array"},
      {"\"1B0\"", "\"2B0\"", "ranks[1] has 2B0"},
      {"[\"1F0\", \"1B0\"]", "{}", "ranks[1] is an object; use an array"},
      {"]\n}\n", "]\n", "invalid JSON at byte"},
      {"]\n}\n", "]\n}x", "invalid JSON at byte"},
  };
  for (const auto& [from, to, message] : kCases) {
    const std::string text = absl::StrReplaceAll(kText, {{from, to}});
    ASSERT_NE(text, kText) << from;
    EXPECT_THAT(ReadJson(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr(message)))
        << text;
  }
  for (const char* text : {"", "[]", "3", "\"x\"", "nul", "[[[[[[[["}) {
    EXPECT_THAT(ReadJson(text), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST(JsonTest, NestingIsBounded) {
  const std::string deep = std::string(1'000'000, '[');
  EXPECT_THAT(ReadJson(deep), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ReadJson(absl::StrReplaceAll(kText, {{"[0, 1]", deep}})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("nested more than 8 deep")));
}

}  // namespace

}  // namespace tessera::pipeline
