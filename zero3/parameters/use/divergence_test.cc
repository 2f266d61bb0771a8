#include "zero3/parameters/use/divergence.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "zero3/parameters/use/order_hash.h"

namespace tessera::zero3 {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<ParameterId> Ids(const std::vector<int64_t>& values) {
  std::vector<ParameterId> ids;
  for (const int64_t value : values) ids.push_back(ParameterId(value));
  return ids;
}

ModelParameters Letters() {
  ModelParameters::Builder builder;
  for (const char* name : {"a", "b", "c", "d"}) builder.Add({.name = name});
  builder.Add({.name = "frozen", .trainable = false});
  return *builder.Build();
}

absl::Status Check(const std::vector<std::vector<int64_t>>& ranks) {
  std::vector<std::vector<ParameterId>> orders;
  for (const auto& rank : ranks) orders.push_back(Ids(rank));
  return CheckOrders(orders, Letters());
}

TEST(CheckOrdersTest, EqualOrdersPass) {
  TESSERA_EXPECT_OK(Check({}));
  TESSERA_EXPECT_OK(Check({{}, {}}));
  TESSERA_EXPECT_OK(Check({{0, 1, 2}}));
  TESSERA_EXPECT_OK(Check({{0, 1, 2}, {0, 1, 2}, {0, 1, 2}}));
}

TEST(CheckOrdersTest, TheOneRankThatDiffersIsNamed) {
  EXPECT_THAT(Check({{0, 1, 2}, {0, 1, 2}, {0, 3, 2}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank 2 uses parameter 3 \"d\" as use "
                                       "1 of the step"),
                             HasSubstr("where 2 of 3 ranks use parameter 1 "
                                       "\"b\""),
                             HasSubstr("allow_unused_parameters"),
                             Not(HasSubstr("also different")))));
}

TEST(CheckOrdersTest, RankZeroCanBeTheOneThatDiffers) {
  EXPECT_THAT(Check({{1, 0}, {0, 1}, {0, 1}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("rank 0 uses parameter 1 \"b\" as use 0")));
}

TEST(CheckOrdersTest, OfTwoRanksTheFirstIsRight) {
  EXPECT_THAT(Check({{0, 1}, {0, 2}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("rank 1 uses parameter 2 \"c\"")));
}

TEST(CheckOrdersTest, SkippedAddedAndMissingUsesAreToldApart) {
  EXPECT_THAT(Check({{0, 1, 2}, {0, 1, 2}, {0, 2}}).message(),
              HasSubstr("\"b\": it skips that"));
  EXPECT_THAT(Check({{0, 1, 2}, {0, 1, 2}, {0, 3, 1, 2}}).message(),
              HasSubstr("it uses that one later, and this one in addition"));
  EXPECT_THAT(Check({{0, 1}, {0, 1}, {0}}).message(),
              HasSubstr("rank 2 uses nothing more as use 1"));
  EXPECT_THAT(Check({{0}, {0, 1}, {0}}).message(),
              HasSubstr("2 of 3 ranks use nothing more"));
}

TEST(CheckOrdersTest, OtherRanksThatDifferAreListedUpToEight) {
  EXPECT_THAT(Check({{0}, {0}, {0}, {1}, {2}, {0}, {3}}).message(),
              AllOf(HasSubstr("rank 3 uses"),
                    HasSubstr("also different: ranks 4, 6;")));
  std::vector<std::vector<int64_t>> many(30, {0});
  for (size_t i = 18; i < 30; ++i) many[i] = {1};
  EXPECT_THAT(Check(many).message(),
              AllOf(HasSubstr("rank 18 uses"),
                    HasSubstr("19, 20, 21, 22, 23, 24, 25, 26 and 3 more")));
}

TEST(CheckOrdersTest, IdsOutsideTheModelAreToldAsSuch) {
  EXPECT_THAT(Check({{0}, {0}, {77}}).message(),
              HasSubstr("parameter 77 (not in the model)"));
}

// What the ranks do: compare hashes, find the position, exchange the uses.
TEST(DivergenceTest, SearchAndErrorWorkTogether) {
  const std::vector<std::vector<int64_t>> ranks = {
      {0, 1, 2, 3, 2, 1, 0}, {0, 1, 2, 3, 2, 1, 0}, {0, 1, 2, 3, 1, 0}};
  std::vector<OrderHash> orders(ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const int64_t id : ranks[rank]) orders[rank].Record(ParameterId(id));
  }
  DivergenceSearch search(6);
  while (!search.Done()) {
    bool all_equal = true;
    for (const OrderHash& order : orders) {
      all_equal &= order.PrefixHash(search.Length()) ==
                   orders[0].PrefixHash(search.Length());
    }
    search.Report(all_equal);
  }
  EXPECT_EQ(search.Position(), 4u);
  std::vector<UseAt> uses;
  for (const OrderHash& order : orders) {
    uses.push_back(UseAtPosition(order.uses(), search.Position()));
  }
  EXPECT_THAT(DivergenceError(search.Position(), uses, Letters()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("rank 2 uses parameter 1 \"b\" as use 4 of "
                                 "the step (counted from 0), where 2 of 3 "
                                 "ranks use parameter 2 \"c\": it skips")));
}

TEST(UnusedParametersTest, AreTheTrainableOnesLeftOut) {
  const ModelParameters model = Letters();
  EXPECT_THAT(UnusedParameters(Ids({2, 0, 2, 99}), model),
              ElementsAre(ParameterId(1), ParameterId(3)));
  EXPECT_THAT(UnusedParameters(Ids({0, 1, 2, 3}), model), IsEmpty());
}

}  // namespace
}  // namespace tessera::zero3
