#include "topology/config/parallel_config_json.h"

#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::topology {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

template <typename... Matchers>
auto Refused(Matchers... matchers) {
  return StatusIs(absl::StatusCode::kInvalidArgument,
                  AllOf(HasSubstr(""), matchers...));
}

TEST(ParallelConfigJsonTest, ReadsEveryKey) {
  ParallelConfig expected;
  expected.dp = AxisSize(2);
  expected.tp = AxisSize(4);
  expected.pp = AxisSize(3);
  expected.cp = AxisSize(5);
  expected.ep = AxisSize(8);
  expected.order = "pp-dp-ep-cp-tp";
  expected.layers = 36;
  expected.micro_batch_size = 7;
  expected.micro_batches = 12;
  expected.schedule = ScheduleKind::kInterleaved1F1B;
  expected.chunks = 6;
  expected.memory_strategy = MemoryStrategy::kAggressive;
  expected.communication_strategy = CommunicationStrategy::kHierarchical;
  expected.precision = Precision::kFp16;
  expected.device_memory = ByteSize(int64_t{80} << 30);
  expected.timeout = absl::Milliseconds(1500);
  EXPECT_THAT(ParseParallelConfig(R"({
      "dp": 2, "tp": 4, "pp": 3, "cp": 5, "ep": 8,
      "order": "pp-dp-ep-cp-tp", "layers": 36, "micro_batch_size": 7,
      "micro_batches": 12, "schedule": "interleaved_1f1b", "chunks": 6,
      "memory_strategy": "aggressive",
      "communication_strategy": "hierarchical", "precision": "fp16",
      "device_memory": "80GiB", "timeout": 1.5})"),
              IsOkAndHolds(expected));
}

TEST(ParallelConfigJsonTest, MemoryAndTimeAreNumbersOrTexts) {
  EXPECT_EQ(ParseParallelConfig(R"({"device_memory": 1024})")->device_memory,
            ByteSize(1024));
  EXPECT_EQ(ParseParallelConfig(R"({"timeout": 12})")->timeout,
            absl::Seconds(12));
  EXPECT_EQ(ParseParallelConfig(R"({"timeout": "2m"})")->timeout,
            absl::Minutes(2));
  EXPECT_EQ(ParseParallelConfig(R"({"timeout": "inf"})")->timeout,
            absl::InfiniteDuration());
}

TEST(ParallelConfigJsonTest, KeysNotGivenKeepTheirDefaults) {
  EXPECT_THAT(ParseParallelConfig("{}"), IsOkAndHolds(ParallelConfig()));
}

TEST(ParallelConfigJsonTest, AnUnknownKeyIsNamedWithTheNearestKnownOne) {
  EXPECT_THAT(
      ParseParallelConfig(R"({"micro_batchs": 2})"),
      Refused(HasSubstr("unknown key \"micro_batchs\""),
              HasSubstr("did you mean \"micro_batches\"?"), HasSubstr("dp")));
  EXPECT_THAT(ParseParallelConfig(R"({"DP": 2})"),
              Refused(HasSubstr("did you mean \"dp\"?")));
  EXPECT_THAT(
      ParseParallelConfig("{\"" + std::string(5000, 'q') + "\": 2}"),
      Refused(HasSubstr("qqq..."), Not(HasSubstr(std::string(50, 'q')))));
}

TEST(ParallelConfigJsonTest, AKeyThatComesTwiceIsRefused) {
  EXPECT_THAT(ParseParallelConfig(R"({"dp": 2, "tp": 1, "dp": 2})"),
              Refused(HasSubstr("key \"dp\" comes twice")));
  EXPECT_THAT(ParseParallelConfig(R"({"dp": 2, "\u0064p": 2})"),
              Refused(HasSubstr("key \"dp\" comes twice")));
}

TEST(ParallelConfigJsonTest, AWrongTypeNamesKeyExpectedAndFound) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"dp": "2"})", R"(key "dp": expected an integer below 2^63, found )"
                         R"(the string "2")"},
      {R"({"dp": 2.5})", "found the number 2.5"},
      {R"({"dp": 2.0})", "found the number 2"},
      {R"({"dp": null})", "found null"},
      {R"({"dp": true})", "found true"},
      {R"({"dp": 9223372036854775808})",
       "found the integer 9223372036854775808"},
      {R"({"dp": [2]})", R"(key "dp": expected a number or a string, found an )"
                         "array"},
      {R"({"order": {"a": 1}})",
       "key \"order\": expected a number or a "
       "string, found an object"},
      {R"({"order": 3})",
       "key \"order\": expected a string, found the integer "
       "3"},
      {R"({"schedule": 3})", "expected one of the strings gpipe, 1f1b"},
      {R"({"schedule": "zbv"})",
       R"(key "schedule": unknown schedule "zbv"; allowed: gpipe)"},
      {R"({"device_memory": 1.5})", "a string such as \"80GiB\" or an integer"},
      {R"({"device_memory": "2 cows"})", "\"2 cows\" has an unknown unit"},
      {R"({"timeout": "soon"})", R"(key "timeout": expected a string such as )"
                                 R"("30s" or a number of seconds, found the )"
                                 R"(string "soon")"},
      {R"({"timeout": false})", "found false"},
  };
  for (const auto& [json, message] : cases) {
    EXPECT_THAT(ParseParallelConfig(json), Refused(HasSubstr(message)));
  }
}

TEST(ParallelConfigJsonTest, WhatIsNoJsonObjectIsRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "no JSON at byte"},
      {"{", "no JSON at byte"},
      {R"({"dp": 2,})", "no JSON at byte"},
      {R"({"dp": 2} {})", "no JSON at byte"},
      {R"({"dp": 1e999})", "1e999"},
      {"{\"order\": \"\xff\"}", "no JSON at byte"},
      {"[]", "found an array"},
      {"3", "found the integer 3"},
      {"\"dp2\"", "found the string \"dp2\""},
      {"null", "found null"},
      {std::string(kMaxConfigBytes + 1, ' '), "at most 65536"},
      {std::string(60'000, '['), "found an array"},
      {"{\"dp\": " + std::string(60'000, '['), "found an array"},
  };
  for (const auto& [json, message] : cases) {
    EXPECT_THAT(
        ParseParallelConfig(json),
        Refused(HasSubstr("parallel configuration: "), HasSubstr(message)))
        << json.substr(0, 50);
  }
}

TEST(ParallelConfigJsonTest, WhatIsWrittenReadsBack) {
  std::mt19937_64 random(5);
  const auto any = [&] {
    return static_cast<int64_t>(random() >> random() % 64);
  };
  for (int round = 0; round < 5000; ++round) {
    ParallelConfig config;
    config.dp = AxisSize(any());
    config.ep = AxisSize(any());
    config.order = std::string(random() % 3, '"') + "\xc3\xa9\n\x01";
    config.layers = any();
    config.micro_batches = any();
    config.schedule = static_cast<ScheduleKind>(random() % 16);
    config.memory_strategy = static_cast<MemoryStrategy>(random() % 4);
    config.communication_strategy =
        static_cast<CommunicationStrategy>(random() % 5);
    config.precision = static_cast<Precision>(random() % 3);
    config.device_memory = ByteSize(any());
    config.timeout = absl::Nanoseconds(any()) / (1 + random() % 8);
    EXPECT_THAT(ParseParallelConfig(FormatParallelConfig(config)),
                IsOkAndHolds(config));
  }
}

TEST(ParallelConfigJsonTest, WritingDoesNotFailOnBytesThatAreNoText) {
  ParallelConfig config;
  config.order = "tp\xff";
  config.timeout = -absl::InfiniteDuration();
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const ParallelConfig read,
      ParseParallelConfig(FormatParallelConfig(config)));
  EXPECT_EQ(read.order, "tp\xef\xbf\xbd");
  EXPECT_EQ(read.timeout, -absl::InfiniteDuration());
}

TEST(ParallelConfigJsonTest, SavesAndLoads) {
  const std::string path = ::testing::TempDir() + "/config.json";
  ParallelConfig config;
  config.layers = 12;
  TESSERA_ASSERT_OK(SaveParallelConfig(config, path));
  EXPECT_THAT(LoadParallelConfig(path), IsOkAndHolds(config));
  config.layers = 13;
  TESSERA_ASSERT_OK(SaveParallelConfig(config, path));
  EXPECT_THAT(LoadParallelConfig(path), IsOkAndHolds(config));
}

TEST(ParallelConfigJsonTest, FileErrorsNameTheFile) {
  const std::string path = ::testing::TempDir() + "/broken.json";
  std::ofstream(path) << "{\"dp\": 2";
  EXPECT_THAT(LoadParallelConfig(path),
              Refused(HasSubstr("/broken.json: "), HasSubstr("no JSON")));
  std::ofstream(path) << std::string(kMaxConfigBytes + 1, ' ');
  EXPECT_THAT(LoadParallelConfig(path),
              Refused(HasSubstr("/broken.json"), HasSubstr("65536")));
  EXPECT_THAT(LoadParallelConfig("/nonexistent/c.json"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/c.json")));
  EXPECT_THAT(SaveParallelConfig({}, "/nonexistent/c.json"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/c.json")));
}

}  // namespace
}  // namespace tessera::topology
