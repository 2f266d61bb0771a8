#include "tools/model_files/parse_json.h"

#include <string>

#include "base/quoted.h"
#include "base/status_matchers.h"
#include "base/text_mutator.h"
#include "gtest/gtest.h"

namespace tessera::model_files {
namespace {

using ::testing::HasSubstr;

constexpr JsonLimits kLimits = {.max_bytes = 1000, .max_depth = 3};

auto Refused(std::string_view words) {
  return StatusIs(absl::StatusCode::kInvalidArgument,
                  HasSubstr(std::string(words)));
}

TEST(ParseJsonTest, ReadsWhatTheLibraryReads) {
  for (const char* text :
       {"{}", "[]", "3", "-3", "2.5", "null", "true", "\"a\\u00e9\"",
        "18446744073709551615", "[1,[2,[3]],{}]",
        R"({"a": {"b": {"c": 1}}, "b": [1, {"a": null}], "": ""})"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const nlohmann::json document,
                                 ParseJson(text, kLimits));
    EXPECT_EQ(document, nlohmann::json::parse(text)) << text;
  }
}

TEST(ParseJsonTest, RefusesWhatIsNoJson) {
  EXPECT_THAT(ParseJson("", kLimits), Refused("no JSON at byte"));
  EXPECT_THAT(ParseJson("{\"a\":", kLimits), Refused("no JSON at byte 6"));
  EXPECT_THAT(ParseJson("{} {}", kLimits), Refused("no JSON at byte"));
  EXPECT_THAT(ParseJson("\"\xff\"", kLimits), Refused("no JSON at byte 2"));
  EXPECT_THAT(ParseJson("1e999", kLimits), Refused("no JSON"));
}

TEST(ParseJsonTest, RefusesAKeyThatComesTwiceInOneObject) {
  EXPECT_THAT(ParseJson(R"({"a": 1, "b": 2, "a": 3})", kLimits),
              Refused("key \"a\" comes twice"));
  TESSERA_EXPECT_OK(ParseJson(R"([{"a": 1}, {"a": {"a": 1}}])", kLimits));
}

TEST(ParseJsonTest, BoundsLengthAndDepth) {
  TESSERA_EXPECT_OK(ParseJson("[[[]]]", kLimits));
  EXPECT_THAT(ParseJson("[[[[]]]]", kLimits), Refused("more than 3 deep"));
  EXPECT_THAT(ParseJson("{\"a\":[[[]]]}", kLimits),
              Refused("more than 3 deep"));
  EXPECT_THAT(ParseJson(std::string(1001, ' '), kLimits),
              Refused("1001 bytes of JSON; at most 1000"));
  EXPECT_THAT(ParseJson(std::string(5'000'000, '['),
                        {.max_bytes = 10'000'000, .max_depth = 64}),
              Refused("more than 64 deep"));
}

TEST(ParseJsonTest, DescribesAndQuotesInFewBytes) {
  EXPECT_EQ(DescribeJson(nlohmann::json::parse("{\"a\":1}")), "an object");
  EXPECT_EQ(DescribeJson(nlohmann::json::parse("[1]")), "an array");
  EXPECT_EQ(DescribeJson(nlohmann::json::parse("1.5")), "1.5");
  EXPECT_EQ(DescribeJson(nlohmann::json::parse("null")), "null");
  EXPECT_EQ(DescribeJson("x\n"), "the string \"x\\n\"");
  EXPECT_EQ(Quoted(std::string(101, 'x')),
            "\"" + std::string(100, 'x') + "...\"");
  EXPECT_EQ(QuotedPath("a" + std::string(999, 'x')),
            "\"a" + std::string(999, 'x') + "\"");
  EXPECT_EQ(QuotedPath("a" + std::string(1000, 'x')),
            "\"..." + std::string(1000, 'x') + "\"");
}

TEST(ParseJsonFuzzTest, AgreesWithTheLibraryOrRefuses) {
  TextMutator mutator({R"({"a": {"b": {"c": 1}}, "b": [1, 2.5, "x\u00e9"]})",
                       "[[], {}, null, true, -12]"},
                      {"[", "{", "\"a\":", "\\u", "\xc3\xa9", "1e400"}, 7);
  int valid = 0;
  for (int round = 0; round < 50'000; ++round) {
    const std::string text = mutator.Next();
    const auto document = ParseJson(text, {.max_bytes = 200, .max_depth = 4});
    if (!document.ok()) {
      ASSERT_THAT(document,
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(" ")));
      ASSERT_LT(document.status().message().size(), 1000u);
      continue;
    }
    ++valid;
    ASSERT_EQ(*document, nlohmann::json::parse(text)) << text;
  }
  EXPECT_GT(valid, 500);
}

}  // namespace
}  // namespace tessera::model_files
