#include "base/json/json.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr JsonLimits kLimits = {.max_bytes = 1000, .max_depth = 3};

auto Refused(std::string_view words) {
  return StatusIs(absl::StatusCode::kInvalidArgument,
                  HasSubstr(std::string(words)));
}

TEST(ParseJsonTest, MatchesLibrary) {
  for (const char* text :
       {"{}", "[]", "3", "-3", "2.5", "1.5e3", "null", "true", "\"a\\u00e9\"",
        "18446744073709551615", "[1,[2,[3]],{}]",
        R"({"a": {"b": {"c": 1}}, "b": [1, {"a": null}], "": ""})"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const json document, ParseJson(text, kLimits));
    EXPECT_EQ(document, json::parse(text)) << text;
  }
}

TEST(ParseJsonTest, ReportsPositionOfSyntaxError) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "line 1, column 1"},
      {"{\"a\":", "invalid JSON at byte 6: parse error at line 1, column 6"},
      {"{\n  \"a\": 1,\n  oops\n}", "line 3, column 3"},
      {"{} {}", "line 1, column 4"},
      {"[1,]", "line 1, column 4"},
      {"[1e999]", "invalid JSON"},
      {"\"\xff\"", "invalid JSON at byte 2"},
      {"nul", "invalid JSON"},
  };
  for (const auto& [text, place] : cases) {
    EXPECT_THAT(ParseJson(text), Refused(place)) << text;
  }
}

TEST(ParseJsonTest, RejectsDuplicateKeys) {
  EXPECT_THAT(ParseJson(R"({"a": 1, "b": 2, "a": 3})", kLimits),
              Refused("key \"a\" comes twice"));
  EXPECT_THAT(ParseJson(R"({"a":{"b":1,"b":2}})", kLimits),
              Refused("key \"b\" comes twice"));
  TESSERA_EXPECT_OK(ParseJson(R"([{"a": 1}, {"a": {"a": 1}}])", kLimits));
}

TEST(ParseJsonTest, BoundsLengthAndDepth) {
  TESSERA_EXPECT_OK(ParseJson("[[[]]]", kLimits));
  EXPECT_THAT(ParseJson("[[[[]]]]", kLimits), Refused("more than 3 deep"));
  EXPECT_THAT(ParseJson("[[{\"a\":[]}]]", kLimits),
              Refused("more than 3 deep"));
  EXPECT_THAT(ParseJson("{\"a\":[[[]]]}", kLimits),
              Refused("more than 3 deep"));
  EXPECT_THAT(ParseJson(std::string(1001, ' '), kLimits),
              Refused("1001 bytes of JSON; at most 1000"));
  EXPECT_THAT(ParseJson(std::string(5'000'000, '['),
                        {.max_bytes = 10'000'000, .max_depth = 64}),
              Refused("more than 64 deep"));
}

constexpr JsonLimits kPython = {.max_depth = 10'000,
                                .dialect = JsonDialect::kPython};

// Each pair is a text that Python's json.loads reads, and the same value in
// strict JSON.
TEST(ParseJsonTest, PythonDialectReadsWhatPythonReads) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"a": NaN})", R"({"a": null})"},
      {R"([Infinity,-Infinity, NaN])", "[null, null, null]"},
      {R"(["NaN", "-Infinity", "1e999"])", R"(["NaN", "-Infinity", "1e999"])"},
      {R"({"a": 1, "b": {"c": 2, "c": 3}, "a": 4})",
       R"({"a": 4, "b": {"c": 3}})"},
      {R"({"a": {"x": 1}, "a": [2]})", R"({"a": [2]})"},
      {"[1e999, -1E+999, 2.5, 12]", "[null, null, 2.5, 12]"},
      {"[" + std::string(400, '7') + "]", "[null]"},
      {R"(["\ud83d", "a\udc00\u00e9", "\ud83d\ud83d\ude00"])",
       R"(["\ufffd", "a\ufffd\u00e9", "\ufffd\ud83d\ude00"])"},
      {R"(["\ud83d\n", "\\ud83d", "\"NaN"])",
       R"(["\ufffd\n", "\\ud83d", "\"NaN"])"},
      {"[\"\xed\xa0\xbd \xed\x9f\xbf\", NaN]",
       "[\"\xef\xbf\xbd \xed\x9f\xbf\", null]"},
      {R"(["\u0000\/", [], {}, true])", R"(["\u0000\/", [], {}, true])"},
  };
  for (const auto& [text, same] : cases) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const json document, ParseJson(text, kPython));
    EXPECT_EQ(document, json::parse(same)) << text;
  }
  const std::string deep =
      std::string(10'000, '[') + "NaN" + std::string(10'000, ']');
  TESSERA_EXPECT_OK(ParseJson(deep, kPython));
  EXPECT_THAT(ParseJson("[" + deep + "]", kPython),
              Refused("more than 10000 deep"));
}

TEST(ParseJsonTest, PythonDialectRejectsWhatPythonRejects) {
  for (const std::string text : {"[nan]",      "[NaNa]",       "[+Infinity]",
                                 "[-NaN]",     "[- Infinity]", "[Inf]",
                                 "[01e999]",   "[1.e999]",     "[1e999.5]",
                                 "[1e]",       "[.5]",         "[1,]",
                                 "{'a': 1}",   "{NaN: 1}",     "\"tab\there\"",
                                 "\"\\ud83\"", "\"\\ud8zz\"",  "\"\\",
                                 "\"",         "\"\xff\"",     "\"\xed\xa0\"",
                                 "[1] NaN",    "\xef\xbb[1]",  ""}) {
    EXPECT_THAT(ParseJson(text, kPython), Refused("invalid JSON")) << text;
  }
  for (const char* text : {"[NaN]", R"(["\ud83d"])", "[1e999]"}) {
    EXPECT_THAT(ParseJson(text), Refused("invalid JSON")) << text;
  }
}

TEST(DumpJsonTest, ReplacesInvalidUtf8) {
  const std::string name = "caf\xe9/\xff\xc3\xa9";
  const std::string replaced = "caf\xef\xbf\xbd/\xef\xbf\xbd\xc3\xa9";
  EXPECT_EQ(DumpJson(json(name)), "\"" + replaced + "\"");
  nlohmann::ordered_json ordered = {{"z", name}};
  ordered[name] = 1;
  EXPECT_EQ(DumpJson(ordered),
            "{\"z\":\"" + replaced + "\",\"" + replaced + "\":1}");
  EXPECT_EQ(DumpJson(json{{"a", {1}}}, 1), "{\n \"a\": [\n  1\n ]\n}");
}

TEST(ParseJsonFuzzTest, AgreesWithLibraryOrRejects) {
  TextMutator mutator({R"({"a": {"b": {"c": 1}}, "b": [1, 2.5, "x\u00e9"]})",
                       "[[], {}, null, true, -12]"},
                      {"[", "{", "\"a\":", "\\u", "\xc3\xa9", "1e400"}, 7);
  int valid = 0;
  for (int round = 0; round < 50'000; ++round) {
    const std::string text = mutator.Next();
    const auto document = ParseJson(text, {.max_bytes = 200, .max_depth = 4});
    if (!document.ok()) {
      ASSERT_THAT(document, Refused(" "));
      ASSERT_LT(document.status().message().size(), 1000u);
      continue;
    }
    ++valid;
    ASSERT_EQ(*document, json::parse(text)) << text;
  }
  EXPECT_GT(valid, 500);
}

TEST(ParseJsonFuzzTest, PythonDialectAcceptsAllStrictTexts) {
  TextMutator mutator(
      {R"({"a": NaN, "b": [1, -Infinity, "x\ud83d"], "a": 2})",
       R"([[], {"k": "\ud83d\ude00"}, 1e999, -12])"},
      {"[", "NaN", "\"a\":", "\\ud83d", "\\udc00", "\xed\xa0\xbd", "1e999"}, 9);
  int both = 0, more = 0;
  for (int round = 0; round < 50'000; ++round) {
    const std::string text = mutator.Next();
    const auto strict = ParseJson(text, {.max_bytes = 200, .max_depth = 8});
    const auto python = ParseJson(
        text,
        {.max_bytes = 200, .max_depth = 8, .dialect = JsonDialect::kPython});
    if (strict.ok()) {
      ++both;
      ASSERT_TRUE(python.ok()) << text;
      ASSERT_EQ(*strict, *python) << text;
    } else if (python.ok()) {
      ++more;
      ASSERT_TRUE(json::accept(DumpJson(*python))) << text;
    }
  }
  EXPECT_GT(both, 50);
  EXPECT_GT(more, 500);
}

TEST(DescribeJsonTest, IsShortAndPrintable) {
  EXPECT_EQ(DescribeJson(json::parse("{\"a\":1}")), "an object");
  EXPECT_EQ(DescribeJson(json::parse("[1]")), "an array");
  EXPECT_EQ(DescribeJson(1.5), "1.5");
  EXPECT_EQ(DescribeJson(nullptr), "null");
  EXPECT_EQ(DescribeJson(true), "true");
  EXPECT_EQ(DescribeJson("x\n"), "\"x\\n\"");
  EXPECT_EQ(DescribeJson("é"), "\"\\xc3\\xa9\"");
  EXPECT_EQ(DescribeJson(std::string(101, 'x')),
            "\"" + std::string(100, 'x') + "...\"");
}

TEST(JsonIntegerTest, IsAnIntegerOf64Bits) {
  EXPECT_EQ(JsonInteger(-3), -3);
  EXPECT_EQ(JsonInteger(uint64_t{INT64_MAX}), INT64_MAX);
  EXPECT_EQ(JsonInteger(INT64_MIN), INT64_MIN);
  for (const json& value :
       {json(uint64_t{1} << 63), json(1.0), json("1"), json(true), json()}) {
    EXPECT_EQ(JsonInteger(value), std::nullopt) << value;
  }
}

TEST(JsonReaderTest, TakesFieldsOfTheRightType) {
  const json value = json::parse(
      R"({"i": 3, "d": 1.5, "n": -2, "s": "text", "b": true, "a": [1, 2],
          "o": {"x": 1}, "u": null})");
  JsonProblems problems;
  JsonReader reader(value, "x", problems);
  EXPECT_EQ(reader.Integer("i", 0, 5), 3);
  EXPECT_EQ(reader.IntegerOr("i", 9, 0, 5), 3);
  EXPECT_EQ(reader.Number("d"), 1.5);
  EXPECT_EQ(reader.Number("n"), -2);
  EXPECT_EQ(reader.NumberOr("d", 9, 0), 1.5);
  EXPECT_EQ(reader.Text("s"), "text");
  EXPECT_EQ(reader.TextOr("s", ""), "text");
  EXPECT_TRUE(reader.Boolean("b"));
  EXPECT_EQ(reader.Array("a").size(), 2u);
  EXPECT_EQ(reader.Integers("a", 0, 2), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(reader.Numbers("a"), (std::vector<double>{1, 2}));
  EXPECT_EQ(reader.Object("o").size(), 1u);
  JsonReader child = reader.Child("o");
  EXPECT_EQ(child.PathOf("x"), "x.o.x");
  EXPECT_EQ(child.Integer("x", 0, 1), 1);
  child.RefuseOtherKeys();
  EXPECT_NE(reader.FindArray("a"), nullptr);
  EXPECT_NE(reader.FindObject("o"), nullptr);
  EXPECT_TRUE(reader.Find("u")->is_null());
  EXPECT_TRUE(reader.Has("i"));
  reader.RefuseOtherKeys();
  EXPECT_THAT(problems.ToStatus("x"), IsOk());
}

TEST(JsonReaderTest, UsesFallbackForMissingOptionalFields) {
  const json value = json::object();
  JsonProblems problems;
  JsonReader reader(value, "", problems);
  EXPECT_EQ(reader.IntegerOr("i", 9, 0, 5), 9);
  EXPECT_EQ(reader.NumberOr("d", 9, 0), 9);
  EXPECT_EQ(reader.TextOr("s", "f"), "f");
  EXPECT_EQ(reader.Find("a"), nullptr);
  EXPECT_EQ(reader.FindArray("a"), nullptr);
  EXPECT_EQ(reader.FindObject("o"), nullptr);
  EXPECT_FALSE(reader.Has("i"));
  EXPECT_TRUE(problems.empty());
}

TEST(JsonReaderTest, ReportsMissingRequiredFields) {
  const json value = json::object();
  JsonProblems problems;
  JsonReader reader(value, "part", problems);
  EXPECT_EQ(reader.Integer("i", 2, 5), 2);
  EXPECT_EQ(reader.Number("d"), 0);
  EXPECT_FALSE(reader.Boolean("b"));
  EXPECT_EQ(reader.Text("s"), "");
  EXPECT_TRUE(reader.Array("a").empty());
  EXPECT_TRUE(reader.Object("o").empty());
  EXPECT_TRUE(reader.Integers("ii", 0, 5).empty());
  EXPECT_TRUE(reader.Numbers("dd").empty());
  JsonReader child = reader.Child("c");
  EXPECT_EQ(child.Integer("x", 3, 4), 3);
  const absl::Status status = problems.ToStatus("the manifest");
  for (const char* part :
       {"the manifest has 9 problems: ", "part.c is missing; give an object",
        "part.i is missing; give a whole number",
        "part.d is missing; give a number",
        "part.b is missing; give true or false",
        "part.s is missing; give a text", "part.a is missing; give an array",
        "part.o is missing; give an object", "part.ii is missing",
        "part.dd is missing"}) {
    EXPECT_THAT(status, Refused(part));
  }
}

TEST(JsonReaderTest, ReportsWrongFieldsWithPath) {
  const json value = json::parse(
      R"({"i": "3", "j": 6, "k": 1.0, "l": 18446744073709551615, "m": -1,
          "d": -1, "e": null, "s": 7, "a": {}, "o": [], "b": 0,
          "c": [], "ii": [1, 2, 9], "dd": [1, "2"], "zz": 1})");
  JsonProblems problems;
  JsonReader reader(value, "hosts[3]", problems);
  EXPECT_EQ(reader.IntegerOr("i", 9, 0, 5), 9);
  EXPECT_EQ(reader.IntegerOr("j", 9, 0, 5), 9);
  EXPECT_EQ(reader.Integer("k", 0, 5), 0);
  EXPECT_EQ(reader.IntegerOr("l", 9, 0, INT64_MAX), 9);
  EXPECT_EQ(reader.IntegerOr("m", 9, 0, 5), 9);
  EXPECT_EQ(reader.NumberOr("d", 9, 0), 9);
  EXPECT_EQ(reader.Number("e"), 0);
  EXPECT_EQ(reader.TextOr("s", "f"), "");
  EXPECT_EQ(reader.FindArray("a"), nullptr);
  EXPECT_EQ(reader.FindObject("o"), nullptr);
  EXPECT_FALSE(reader.Boolean("b"));
  EXPECT_TRUE(reader.Integers("ii", 0, 5).empty());
  EXPECT_TRUE(reader.Numbers("dd").empty());
  JsonReader child = reader.Child("c");
  EXPECT_EQ(child.Text("x"), "");
  reader.Refuse("s", "it must be \"x\"");
  reader.RefuseOtherKeys();
  const absl::Status status = problems.ToStatus("the cluster");
  for (const char* part :
       {"the cluster has 16 problems: ",
        "hosts[3].i is \"3\"; use a whole number from 0 to 5",
        "hosts[3].j is 6; use", "hosts[3].k is 1.0; use",
        "hosts[3].l is 18446744073709551615", "hosts[3].m is -1; use",
        "hosts[3].d is -1; use a number, at least 0", "hosts[3].e is null",
        "hosts[3].s is 7; use a text", "hosts[3].a is an object; use an array",
        "hosts[3].o is an array; use an object",
        "hosts[3].c is an array; use an object",
        "hosts[3].b is 0; use true or false",
        "hosts[3].ii[2] is 9; use a whole number from 0 to 5",
        "hosts[3].dd[1] is \"2\"; use a number", "hosts[3].s: it must be \"x\"",
        "hosts[3].zz is an unknown key; the keys are i, j, k"}) {
    EXPECT_THAT(status, Refused(part));
  }
}

TEST(JsonReaderTest, ReportsNonObjectOnce) {
  for (const json& value : {json(3), json("x"), json::array(), json()}) {
    JsonProblems problems;
    JsonReader reader(value, "", problems);
    EXPECT_EQ(reader.IntegerOr("i", 9, 0, 5), 9);
    EXPECT_EQ(reader.Integer("i", 0, 5), 0);
    EXPECT_FALSE(reader.Has("i"));
    reader.RefuseOtherKeys();
    EXPECT_THAT(problems.ToStatus("cluster"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("1 problem: the text is "),
                               HasSubstr("use an object"))));
  }
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
}  // namespace tessera
