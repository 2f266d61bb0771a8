#include "topology/axis.h"

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::topology {

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Axis A(std::string name, int64_t size) {
  return {std::move(name), AxisSize(size)};
}

TEST(ParseAxesTest, ReadsTheCompactForm) {
  EXPECT_THAT(ParseAxes("dp2,pp2,tp8"),
              IsOkAndHolds(ElementsAre(A("dp", 2), A("pp", 2), A("tp", 8))));
  EXPECT_THAT(ParseAxes(" dp=2, dp_shard=16 "),
              IsOkAndHolds(ElementsAre(A("dp", 2), A("dp_shard", 16))));
  EXPECT_THAT(ParseAxes("tp1"), IsOkAndHolds(ElementsAre(A("tp", 1))));
}

TEST(ParseAxesTest, FormatsBack) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto axes, ParseAxes("dp=2,pp3,tp=5"));
  EXPECT_EQ(FormatAxes(axes), "dp2,pp3,tp5");
  EXPECT_THAT(ParseAxes(FormatAxes(axes)), IsOkAndHolds(axes));
}

TEST(ParseAxesTest, RejectsInvalidMeshesWithReason) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "0 characters"},
      {"dp", "\"dp\" is not a name with a size"},
      {"dp2,", "\"\" is not a name with a size"},
      {"dp2,,tp2", "\"\" is not a name with a size"},
      {"2", "\"\" is not a valid name"},
      {"dp2x", "\"dp2x\" is not a name with a size"},
      {"DP2", "\"DP\" is not a valid name"},
      {"dp0", "\"dp\" has size 0; give it a size of 1 or more"},
      {"dp-3", "\"dp\" has size -3"},
      {"dp2,tp2,dp4", "\"dp\" is named twice"},
      {"dp99999999999999999999", "size below 2^63"},
      {"dp4294967296,tp4294967296", "multiply to more than 2^63-1"},
      {"a1,b1,c1,d1,e1,f1,g1,h1,i1,j1,k1,l1,m1,n1,o1,p1,q1",
       "17 axes are given; at most 16"},
      {std::string(5000, 'a'), "5000 characters"},
  };
  for (const auto& [text, reason] : cases) {
    EXPECT_THAT(ParseAxes(text), StatusIs(kInvalid, HasSubstr(reason))) << text;
  }
}

TEST(ValidateAxesTest, ReportsEveryProblemAtOnce) {
  const std::vector<Axis> axes = {A("dp", 0), A("Tp", 2), A("dp", 3)};
  EXPECT_THAT(ValidateAxes(axes),
              StatusIs(kInvalid, AllOf(HasSubstr("\"dp\" has size 0"),
                                       HasSubstr("\"Tp\" is not a valid name"),
                                       HasSubstr("\"dp\" is named twice"))));
  EXPECT_THAT(ValidateAxes({}), IsOk());
}

TEST(OrderAxesTest, SortsFastestFirstAndIgnoresAbsentAxes) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto axes, ParseAxes("dp2,pp3,tp4"));
  EXPECT_THAT(OrderAxes(axes, "tp-cp-ep-dp-pp"),
              IsOkAndHolds(ElementsAre(A("tp", 4), A("dp", 2), A("pp", 3))));
  EXPECT_THAT(OrderAxes(axes, "pp-tp-dp"),
              IsOkAndHolds(ElementsAre(A("pp", 3), A("tp", 4), A("dp", 2))));
}

TEST(OrderAxesTest, RejectsIncompatibleOrders) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto axes, ParseAxes("dp2,pp3,tp4"));
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"tp-dp",
       "lacks axis \"pp\"; name every axis of the mesh, for example "
       "tp-dp-pp"},
      {"tp-dp-pp-zz", "unknown axis \"zz\"; the mesh has dp, pp, tp"},
      {"tp-dp-pp-tp", "names \"tp\" twice"},
      {"tp--pp", "empty name"},
      {"", "empty name"},
  };
  for (const auto& [order, reason] : cases) {
    EXPECT_THAT(OrderAxes(axes, order), StatusIs(kInvalid, HasSubstr(reason)))
        << order;
  }
}

TEST(ParseAxisNamesTest, TakesCommasAndDashes) {
  EXPECT_THAT(ParseAxisNames("tp,pp"), IsOkAndHolds(ElementsAre("tp", "pp")));
  EXPECT_THAT(ParseAxisNames("dp-cp"), IsOkAndHolds(ElementsAre("dp", "cp")));
  EXPECT_THAT(ParseAxisNames(""), StatusIs(kInvalid, HasSubstr("empty name")));
  EXPECT_THAT(ParseAxisNames("tp,tp"), StatusIs(kInvalid, HasSubstr("twice")));
  EXPECT_THAT(ParseAxisNames(std::string(2000, 'a')),
              StatusIs(kInvalid, HasSubstr("2000 characters")));
}

TEST(CanonicalAxisLessTest, UsualNamesFirstThenAlphabetically) {
  std::vector<std::string> names = {"zz", "ep", "cp", "aa", "tp", "pp", "dp"};
  std::sort(names.begin(), names.end(), CanonicalAxisLess);
  EXPECT_THAT(names, ElementsAre("dp", "tp", "pp", "cp", "ep", "aa", "zz"));
}

}  // namespace

}  // namespace tessera::topology
