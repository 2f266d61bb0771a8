#include "topology/cluster/json_reader.h"

#include <string>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera::topology {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(JsonReaderTest, TakesFieldsOfTheRightType) {
  const json value = json::parse(
      R"({"i": 3, "d": 1.5, "n": 2, "s": "text", "a": [1], "o": {}})");
  JsonProblems problems;
  JsonReader reader(value, "x", problems);
  EXPECT_EQ(reader.Integer("i", 9, 0, 5), 3);
  EXPECT_EQ(reader.Number("d", 9), 1.5);
  EXPECT_EQ(reader.Number("n", 9), 2);
  EXPECT_EQ(reader.Text("s", ""), "text");
  EXPECT_NE(reader.Array("a"), nullptr);
  EXPECT_NE(reader.Object("o"), nullptr);
  EXPECT_TRUE(reader.Has("i"));
  reader.RefuseOtherKeys();
  EXPECT_THAT(problems.ToStatus("x"), IsOk());
}

TEST(JsonReaderTest, MissingFieldsGiveTheFallback) {
  const json value = json::object();
  JsonProblems problems;
  JsonReader reader(value, "", problems);
  EXPECT_EQ(reader.Integer("i", 9, 0, 5), 9);
  EXPECT_EQ(reader.Number("d", 9), 9);
  EXPECT_EQ(reader.Text("s", "f"), "f");
  EXPECT_EQ(reader.Array("a"), nullptr);
  EXPECT_EQ(reader.Object("o"), nullptr);
  EXPECT_FALSE(reader.Has("i"));
  EXPECT_TRUE(problems.empty());
}

TEST(JsonReaderTest, WrongFieldsAreProblemsWithTheirPath) {
  const json value = json::parse(
      R"({"i": "3", "j": 6, "k": 1.0, "l": 18446744073709551615, "m": -1,
          "d": -1, "e": null, "s": 7, "a": {}, "o": [], "zz": 1})");
  JsonProblems problems;
  JsonReader reader(value, "hosts[3]", problems);
  EXPECT_EQ(reader.Integer("i", 9, 0, 5), 9);
  EXPECT_EQ(reader.Integer("j", 9, 0, 5), 9);
  EXPECT_EQ(reader.Integer("k", 9, 0, 5), 9);
  EXPECT_EQ(reader.Integer("l", 9, 0, INT64_MAX), 9);
  EXPECT_EQ(reader.Integer("m", 9, 0, 5), 9);
  EXPECT_EQ(reader.Number("d", 9), 9);
  EXPECT_EQ(reader.Number("e", 9), 9);
  EXPECT_EQ(reader.Text("s", "f"), "f");
  EXPECT_EQ(reader.Array("a"), nullptr);
  EXPECT_EQ(reader.Object("o"), nullptr);
  reader.RefuseOtherKeys();
  const absl::Status status = problems.ToStatus("the cluster");
  for (const char* part :
       {"the cluster has 11 problems: ",
        "hosts[3].i is \"3\"; use a whole number from 0 to 5",
        "hosts[3].j is 6; use", "hosts[3].k is 1.0; use",
        "hosts[3].l is 18446744073709551615", "hosts[3].m is -1; use",
        "hosts[3].d is -1; use a number, at least 0", "hosts[3].e is null",
        "hosts[3].s is 7; use a text", "hosts[3].a is an object; use an array",
        "hosts[3].o is an array; use an object",
        "hosts[3].zz is an unknown key; the keys are i, j, k"}) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(part)));
  }
}

TEST(JsonReaderTest, AValueThatIsNoObjectIsOneProblem) {
  for (const json& value : {json(3), json("x"), json::array(), json()}) {
    JsonProblems problems;
    JsonReader reader(value, "", problems);
    EXPECT_EQ(reader.Integer("i", 9, 0, 5), 9);
    EXPECT_FALSE(reader.Has("i"));
    reader.RefuseOtherKeys();
    EXPECT_THAT(problems.ToStatus("cluster"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("1 problem: the text is "),
                               HasSubstr("use an object"))));
  }
}

TEST(JsonReaderTest, ShowsLongAndForeignTextsShortAndInAscii) {
  EXPECT_EQ(JsonReader::Shown("é"), "\"\\u00e9\"");
  EXPECT_EQ(JsonReader::Shown(std::string(100, 'x')),
            "\"" + std::string(40, 'x') + "\"...");
  // The cut falls into the middle of a character.
  std::string text(39, 'x');
  for (int i = 0; i < 10; ++i) text += "é";
  EXPECT_THAT(JsonReader::Shown(text), HasSubstr("\\ufffd"));
  EXPECT_EQ(JsonReader::Shown(json::object()), "an object");
  EXPECT_EQ(JsonReader::Shown(true), "true");
}

TEST(JsonProblemsTest, KeepsTwentyAndCountsAll) {
  JsonProblems problems;
  for (int i = 0; i < 25; ++i) problems.Add("p" + std::to_string(i));
  EXPECT_THAT(problems.ToStatus("it"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("it has 25 problems: p0; p1"),
                             HasSubstr("p19; ..."))));
}

}  // namespace
}  // namespace tessera::topology
