#include "pipeline/schedule/csv.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::pipeline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CsvTest, ATableOfPyTorchIsReadAndWrittenAgain) {
  // Interleaved zero-bubble on two ranks, as PyTorch writes it.
  const std::string table =
      "0F0,0F1,2F0,2F1,,2I0,2W0\n"
      ",1F0,1F1,3F0,3B0,3F1\n";
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule, ReadCsv(table, "zb"));
  EXPECT_EQ(schedule.name, "zb");
  EXPECT_EQ(schedule.microbatches, 2);
  EXPECT_EQ(schedule.map, *StageMap::Loop(2, 2));
  ASSERT_EQ(schedule.ranks.size(), 2u);
  EXPECT_EQ(schedule.ranks[1][3], (Action{ActionKind::kBackward, 3, 0}));
  // Empty cells mean nothing and are not kept.
  EXPECT_EQ(WriteCsv(schedule),
            "0F0,0F1,2F0,2F1,2I0,2W0\n1F0,1F1,3F0,3B0,3F1\n");
}

TEST(CsvTest, LoweredSchedulesAndPairsSurvive) {
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

TEST(CsvTest, MapsAreKnownFromWhoComputesWhat) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule v, ReadCsv("0F0,3F0\n1F0,2F0\n"));
  EXPECT_EQ(v.map, *StageMap::Zigzag(2, 2));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule both,
                               ReadCsv("0F0,1F1\n1F0,0F1\n"));
  EXPECT_EQ(both.map, *StageMap::TwoWay(2));
  EXPECT_EQ(both.RankOf(0, 0), 0);
  EXPECT_EQ(both.RankOf(0, 1), 1);
}

TEST(CsvTest, WhatIsWrongIsNamed) {
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

}  // namespace
}  // namespace tessera::pipeline
