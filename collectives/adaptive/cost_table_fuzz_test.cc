// Damaged cache files are rejected with an error, or parse to valid costs.

#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "collectives/adaptive/cost_table.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

std::string Document(int64_t ranks) {
  CostTable table;
  table.key = {"a processor", "mpi", ranks, ranks, false};
  table.costs.near = {1e-6, 1e-10};
  table.measured[{OpKind::kAllReduce, Algorithm::kRing}] = {
      {64, 1e-6}, {512, 2e-6}, {4096, 5e-6}};
  table.measured[{OpKind::kBarrier, Algorithm::kTree}] = {{0, 2e-6}};
  return CostTableToJson(table);
}

TEST(CostTableFuzzTest, DamagedTextsAreRejectedOrRoundTrip) {
  TextMutator mutator(
      {Document(1), Document(8), CostTableToJson(CostTable())},
      {"{", "}", "[", "]", "[[[[[[[[[[[[[[[[", ",", ":", "null", "\"", "1e999",
       "-1", "\"op\":", "\"all_reduce\"", "\\u0000", "NaN", "true"},
      /*seed=*/7);
  int refused = 0;
  constexpr int kTexts = 60'000;
  for (int i = 0; i < kTexts; ++i) {
    const std::string text = mutator.Next();
    const auto table = CostTableFromJson(text);
    if (table.ok()) {
      ASSERT_THAT(CheckCostTable(*table), IsOk());
      ASSERT_THAT(CostTableFromJson(CostTableToJson(*table)),
                  IsOkAndHolds(*table));
    } else {
      ASSERT_THAT(table, StatusIs(absl::StatusCode::kInvalidArgument));
      ASSERT_FALSE(table.status().message().empty());
      ++refused;
    }
  }
  EXPECT_GT(refused, kTexts / 2);
}

}  // namespace
}  // namespace tessera::collectives
