// Documents that somebody else wrote, or damaged: never a crash, and what is
// read survives being written.
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "base/text_mutator.h"
#include "gtest/gtest.h"
#include "pipeline/schedule/csv.h"
#include "pipeline/schedule/json.h"

namespace tessera::pipeline {
namespace {

std::vector<std::string> Corpus() {
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

TEST(JsonFuzzTest, ADocumentIsReadWholeOrRefused) {
  TextMutator mutator(Corpus(),
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
