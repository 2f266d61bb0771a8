#include <limits>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops_cpu/gemm.h"

namespace tessera::tensor_parallel::cpu {
namespace {

TEST(Multiply, TakesAStrideOfAnyKindForASingleRow) {
  const std::vector<double> a = {1, 2, 3}, b = {4, 5, 6};
  std::vector<double> c = {7};
  Multiply<double>({1, 1, 3}, 2, {a.data(), 0}, {b.data(), -1, true}, 1,
                   {c.data(), 0});
  EXPECT_EQ(c[0], 7 + 2 * 32);
}

TEST(CheckBlas, AcceptsThisMachinesLibrary) { TESSERA_EXPECT_OK(CheckBlas()); }

TEST(Multiply, AppliesBetaWhereThereIsNothingToAddUp) {
  std::vector<float> c = {1, 2, 99, 3, 4, 99};
  Multiply<float>({2, 2, 0}, 1, {nullptr, 0}, {nullptr, 2}, 3, {c.data(), 3});
  EXPECT_EQ(c, (std::vector<float>{3, 6, 99, 9, 12, 99}));
  c[0] = std::numeric_limits<float>::quiet_NaN();
  Multiply<float>({2, 2, 0}, 1, {nullptr, 0}, {nullptr, 2}, 0, {c.data(), 3});
  EXPECT_EQ(c, (std::vector<float>{0, 0, 99, 0, 0, 99}));
}

}  // namespace
}  // namespace tessera::tensor_parallel::cpu
