#include "zero3/parameters/parameter_groups.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::zero3 {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ParameterGroupsTest, FirstMatchDeterminesRates) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto groups,
      ParseParameterGroups("*norm*:decay=0;layers.[01].*:lr=0.5;*:lr=2,"
                           "decay=0.25"));
  EXPECT_EQ(RatesOf(groups, "layers.0.mlp_norm.weight"),
            (ParameterRates{.weight_decay = 0}));
  EXPECT_EQ(RatesOf(groups, "layers.1.mlp.down.weight"),
            (ParameterRates{.learning_rate = 0.5}));
  EXPECT_EQ(RatesOf(groups, "layers.2.mlp.down.weight"),
            (ParameterRates{.learning_rate = 2, .weight_decay = 0.25}));
  EXPECT_EQ(RatesOf({}, "any"), ParameterRates());
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto none, ParseParameterGroups(""));
  EXPECT_TRUE(none.empty());
}

TEST(ParameterGroupsTest, RejectsInvalidText) {
  for (const std::string text :
       {"norm", ":lr=1", "a:", "a:lr", "a:lr=x", "a:lr=-1", "a:lr=inf",
        "a:decay=nan", "a:rate=1", "a:lr=1,lr=2", "a:decay=1,decay=1",
        "a:lr=1;", ";a:lr=1", "a:lr=1,"}) {
    EXPECT_THAT(
        ParseParameterGroups(text).status(),
        StatusIs(kInvalid, HasSubstr("; give PATTERN:lr=FACTOR,decay=NUMBER")))
        << text;
  }
}

TEST(ParameterGroupsTest, NamesParametersIfNoneMatches) {
  const std::vector<std::string> names = {"embedding.weight",
                                          "layers.0.mlp.down.weight",
                                          "layers.11.mlp.down.weight"};
  TESSERA_EXPECT_OK(CheckPatternsMatch(
      {{{.pattern = "layers.11.*"}, {.pattern = "embedding.weigh?"}}}, names));
  EXPECT_THAT(
      CheckPatternsMatch({{{.pattern = "*"}, {.pattern = "embedding"}}}, names),
      StatusIs(kInvalid,
               HasSubstr("the pattern \"embedding\" matches no parameter; "
                         "there are embedding.weight, "
                         "layers.*.mlp.down.weight")));
}

}  // namespace
}  // namespace tessera::zero3
