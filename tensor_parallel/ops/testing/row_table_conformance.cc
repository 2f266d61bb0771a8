#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/testing/ops_conformance.h"
#include "tensor_parallel/ops/testing/test_tensor.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::HasSubstr;

struct Case {
  IndexRange held;
  int64_t tokens, n;
};
constexpr Case kCases[] = {
    {{0, 1}, 1, 1}, {{3, 9}, 20, 7}, {{10, 14}, 9, 33}, {{0, 50}, 30, 2100},
    {{5, 5}, 4, 3}, {{0, 4}, 0, 3},  {{0, 4}, 3, 0}};

std::vector<int64_t> Ids(const Case& c, std::mt19937_64& random) {
  std::vector<int64_t> ids(c.tokens);
  for (int64_t& id : ids) {
    id =
        c.held.begin - 2 + static_cast<int64_t>(random() % (c.held.size() + 4));
  }
  return ids;
}

TEST_P(OpsConformanceTest, GatherRowsCopiesWhatIsHeldAndZerosElse) {
  std::mt19937_64 random(1);
  for (const DType dtype : kComputedTypes) {
    for (const Case& c : kCases) {
      TestTensor table(dtype, {c.held.size(), c.n}, 2),
          y(dtype, {c.tokens, c.n}, 3);
      table.Randomise(random);
      y.Randomise(random);
      const std::vector<int64_t> ids = Ids(c, random);
      TESSERA_ASSERT_OK(ops().Run(
          op::GatherRows{table.view(), c.held, ListOf(ids), y.view()}));
      for (int64_t i = 0; i < y.size(); ++i) {
        const int64_t id = ids[i / c.n];
        EXPECT_EQ(y.at(i), c.held.contains(id)
                               ? table.at((id - c.held.begin) * c.n + i % c.n)
                               : 0);
      }
      EXPECT_TRUE(y.GapsAreIntact());
    }
  }
}

TEST_P(OpsConformanceTest, AddRowsAddsWhatIsHeldInEitherType) {
  std::mt19937_64 random(2);
  for (const DType dtype : kComputedTypes) {
    for (const DType target : {dtype, StatisticsFor(dtype)}) {
      for (const Case& c : kCases) {
        TestTensor gradient(dtype, {c.tokens, c.n}, 1);
        TestTensor table(target, {c.held.size(), c.n}, 2);
        gradient.Randomise(random);
        table.Randomise(random);
        const std::vector<int64_t> ids = Ids(c, random);
        std::vector<double> expected = table.values();
        for (int64_t i = 0; i < gradient.size(); ++i) {
          const int64_t id = ids[i / c.n];
          if (!c.held.contains(id)) continue;
          expected[(id - c.held.begin) * c.n + i % c.n] += gradient.at(i);
        }
        TESSERA_ASSERT_OK(ops().Run(
            op::AddRows{gradient.view(), c.held, ListOf(ids), table.view()}));
        ExpectClose(table, expected, 5);
        EXPECT_TRUE(table.GapsAreIntact());
      }
    }
  }
}

TEST_P(OpsConformanceTest, RowTableRefusesWhatDoesNotFitAndWritesNothing) {
  const TestTensor table(DType::kF32, {3, 2}), y(DType::kF32, {2, 2});
  const std::vector<int64_t> ids = {0, 1}, three = {0, 1, 2};
  const auto before = y.bytes();
  const auto refused = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(
      ops().Run(op::GatherRows{table.view(), {0, 4}, ListOf(ids), y.view()}),
      refused("GatherRows: \"table\" has shape [3,2]; it should be "
              "[4,2]."));
  EXPECT_THAT(
      ops().Run(op::GatherRows{table.view(), {0, 3}, ListOf(three), y.view()}),
      refused("GatherRows: \"y\" has shape [2,2]; it should be [3,2]"));
  EXPECT_THAT(
      ops().Run(op::AddRows{y.view(), {0, 3}, ListOf(three), table.view()}),
      refused("AddRows: \"ids\" has 3 numbers; it should have 2"));
  EXPECT_THAT(
      ops().Run(op::AddRows{y.view(), {0, 2}, ListOf(ids), table.view()}),
      refused("AddRows: \"table_gradient\" has shape [3,2]"));
  EXPECT_EQ(y.bytes(), before);
}

}  // namespace
}  // namespace tessera::tensor_parallel
