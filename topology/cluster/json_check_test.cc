#include "topology/cluster/json_check.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::topology {
namespace {

using ::testing::HasSubstr;

TEST(JsonCheckTest, AcceptsEveryKindOfValue) {
  for (const char* text :
       {"{}", "[]", "null", "true", "-1", "18446744073709551615", "1.5e3",
        "\"x\"", " [1, {\"a\": [], \"b\": {\"a\": 1}}] "}) {
    EXPECT_THAT(CheckJsonText(text, {}), IsOk()) << text;
  }
}

TEST(JsonCheckTest, SaysWhereTheTextIsBroken) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "line 1, column 1"},
      {"{", "line 1, column"},
      {"{\n  \"a\": 1,\n  oops\n}", "line 3, column 3"},
      {"{} {}", "line 1, column 4"},
      {"[1,]", "line 1, column 4"},
      {"[1e999]", "is no JSON"},
      {"\"\xff\"", "is no JSON"},
      {"nul", "is no JSON"},
  };
  for (const auto& [text, place] : cases) {
    EXPECT_THAT(CheckJsonText(text, {}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(place)))
        << text;
  }
}

TEST(JsonCheckTest, BoundsSizeAndDepth) {
  const JsonLimits limits = {.max_bytes = 100, .max_depth = 3};
  EXPECT_THAT(CheckJsonText("[[[]]]", limits), IsOk());
  EXPECT_THAT(CheckJsonText("[[{\"a\":[]}]]", limits),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("nested more than 3 deep")));
  EXPECT_THAT(CheckJsonText(std::string(101, ' '), limits),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("101 bytes; use at most 100")));
  // Deep nesting is cut off long before it could exhaust a stack.
  EXPECT_THAT(CheckJsonText(std::string(1 << 20, '['), {}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(JsonCheckTest, RefusesARepeatedKeyOfOneObjectOnly) {
  EXPECT_THAT(CheckJsonText(R"([{"a":1},{"a":{"a":2}}])", {}), IsOk());
  EXPECT_THAT(CheckJsonText(R"({"a":{"b":1,"b":2}})", {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the key \"b\" twice")));
}

}  // namespace
}  // namespace tessera::topology
