// Foreign and damaged tables: no crash, and a table that is read survives a
// round trip.

#include <random>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"
#include "pipeline/schedule/schedule_text.h"

namespace tessera::pipeline {

namespace {

const std::vector<std::string>& Corpus() {
  static const auto* const corpus = new std::vector<std::string>{
      "0F0,0F1,2F0,2F1,,2I0,2W0\n,1F0,1F1,3F0,3B0,3F1\n",
      "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0I0,0W0,0REDUCE_GRAD,0RESHARD\n"
      "1RECV_F0,1F0,1B0,1SEND_B0\n",
      "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n",
      "0F0,1F1\n1F0,0F1\n",
      "0F0,0SEND_F0,0F1,(0SEND_F1;0RECV_B0),0B0\n1F0,(1SEND_B0;1RECV_F1)\n",
  };
  return *corpus;
}

std::string Mutate(std::string text, std::mt19937_64& random) {
  static constexpr std::string_view kPieces[] = {"0",
                                                 "F",
                                                 ",",
                                                 "\n",
                                                 "(",
                                                 ";",
                                                 ")OVERLAP_F_B",
                                                 "999999999",
                                                 "SEND_F",
                                                 "16777215",
                                                 "\r",
                                                 std::string_view("\0", 1),
                                                 "\xff",
                                                 "UNSHARD",
                                                 "B"};
  const int times = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < times; ++i) {
    const size_t at = random() % (text.size() + 1);
    switch (random() % 4) {
      case 0:
        text.insert(at, kPieces[random() % std::size(kPieces)]);
        break;
      case 1:
        text.erase(at, random() % 5);
        break;
      case 2:
        if (at < text.size()) text[at] = static_cast<char>(random());
        break;
      default:
        text.insert(at,
                    text.substr(random() % (text.size() + 1), random() % 20));
    }
  }
  return text;
}

TEST(CsvFuzzTest, MutatedTablesAreReadOrRejected) {
  std::mt19937_64 random(20261121);
  int read = 0;
  for (int i = 0; i < 50'000; ++i) {
    const std::string text =
        Mutate(Corpus()[random() % Corpus().size()], random);
    const auto schedule = ReadCsv(text);
    if (!schedule.ok()) {
      ASSERT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_FALSE(schedule.status().message().empty());
      continue;
    }
    ++read;
    EXPECT_THAT(ReadCsv(WriteCsv(*schedule)), IsOkAndHolds(*schedule)) << text;
  }
  EXPECT_GT(read, 500);
}

// Foreign and damaged documents: no crash, and a document that is read survives
// a round trip.

std::vector<std::string> JsonCorpus() {
  std::vector<std::string> corpus;
  for (const char* table :
       {"0F0,0F1,2F0,2F1,,2I0,2W0\n,1F0,1F1,3F0,3B0,3F1\n",
        "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0I0,0W0,0REDUCE_GRAD,0RESHARD\n"
        "1RECV_F0,1F0,1B0,1SEND_B0\n",
        "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n",
        "0F0,(0SEND_F0;0RECV_B1),0B0\n1F0,1F1,(1RECV_F0;1SEND_B1)\n",
        "0F0,1F1\n1F0,0F1\n"}) {
    corpus.push_back(WriteJson(*ReadCsv(table)));
  }
  return corpus;
}

TEST(JsonFuzzTest, MutatedDocumentsAreReadOrRejected) {
  TextMutator mutator(JsonCorpus(),
                      {"0",
                       "F",
                       ",",
                       "[",
                       "]",
                       "{",
                       "}",
                       ":",
                       "\"",
                       "\"0F0\", ",
                       "null",
                       "true",
                       "1e9",
                       "-1",
                       "\"stages\": 3,",
                       "16777215",
                       "[[[[[[[[",
                       "{\"map\":",
                       "\"two_way\": true",
                       "\\u0000",
                       "\xff",
                       "(",
                       ";",
                       ")OVERLAP_F_B"},
                      /*seed=*/20261121);
  int read = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::string text = mutator.Next();
    const auto schedule = ReadJson(text);
    if (!schedule.ok()) {
      ASSERT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_FALSE(schedule.status().message().empty());
      ASSERT_LT(schedule.status().message().size(), 5000u);
      continue;
    }
    ++read;
    EXPECT_THAT(ReadJson(WriteJson(*schedule)), IsOkAndHolds(*schedule))
        << text;
  }
  EXPECT_GT(read, 1000);
}

}  // namespace

}  // namespace tessera::pipeline
