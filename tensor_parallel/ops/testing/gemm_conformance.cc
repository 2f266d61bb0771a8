#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "base/tensor/layout.h"
#include "base/tensor/tensor_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/testing/ops_conformance.h"
#include "tensor_parallel/ops/testing/test_tensor.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::HasSubstr;

struct Sizes {
  int64_t m, n, k;
};

TestTensor Factor(DType dtype, int64_t rows, int64_t columns, bool transposed,
                  std::mt19937_64& random) {
  TestTensor x = transposed ? TestTensor(dtype, {columns, rows}, 3)
                            : TestTensor(dtype, {rows, columns}, 2);
  x.Randomise(random);
  return x;
}

std::vector<double> Expected(const GemmOptions& options, const Sizes& s,
                             const TestTensor& a, const TestTensor& b,
                             const TestTensor& c) {
  const std::vector<double> x = a.values(), y = b.values();
  std::vector<double> result(s.m * s.n);
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < s.k; ++l) {
        sum += x[options.transpose_a ? l * s.m + i : i * s.k + l] *
               y[options.transpose_b ? j * s.k + l : l * s.n + j];
      }
      result[i * s.n + j] = options.alpha * sum;
      if (options.beta != 0) {
        result[i * s.n + j] += options.beta * c.at(i * s.n + j);
      }
    }
  }
  return result;
}

void ExpectIsReference(Ops& ops, const GemmOptions& options, const Sizes& s,
                       DType dtype, DType c_type, std::mt19937_64& random) {
  SCOPED_TRACE(testing::Message()
               << dtype << " to " << c_type << " " << s.m << "x" << s.n << "x"
               << s.k << " " << options.transpose_a << options.transpose_b
               << " beta " << options.beta);
  const TestTensor a = Factor(dtype, s.m, s.k, options.transpose_a, random);
  const TestTensor b = Factor(dtype, s.k, s.n, options.transpose_b, random);
  TestTensor c(c_type, {s.m, s.n}, 4);
  c.Randomise(random);
  const std::vector<double> expected = Expected(options, s, a, b, c);
  if (options.beta == 0) {
    c.Set(std::vector<double>(s.m * s.n,
                              std::numeric_limits<double>::quiet_NaN()));
  }
  TESSERA_ASSERT_OK(ops.Run(op::Gemm{options, a.view(), b.view(), c.view()}));
  ExpectClose(c, expected, 1 + std::sqrt(static_cast<double>(s.k)));
  EXPECT_TRUE(c.GapsAreIntact());
}

TEST_P(OpsConformanceTest, GemmIsTheTextbooksForEveryTypeTransposeAndSize) {
  std::mt19937_64 random(1);
  for (const DType dtype : kComputedTypes) {
    for (const Sizes& sizes :
         {Sizes{1, 1, 1}, Sizes{3, 5, 7}, Sizes{17, 1, 33}, Sizes{1, 40, 9},
          Sizes{65, 31, 50}, Sizes{0, 3, 4}, Sizes{3, 0, 4}, Sizes{3, 4, 0},
          Sizes{0, 0, 0}}) {
      for (int transposes = 0; transposes < 4; ++transposes) {
        for (const double beta : {0.0, 1.0, -0.5}) {
          const GemmOptions options = {.transpose_a = transposes % 2 == 1,
                                       .transpose_b = transposes / 2 == 1,
                                       .alpha = 0.75,
                                       .beta = beta};
          ExpectIsReference(ops(), options, sizes, dtype, dtype, random);
          if (dtype == DType::kBF16) {
            ExpectIsReference(ops(), options, sizes, dtype, DType::kF32,
                              random);
          }
        }
      }
    }
  }
}

TEST_P(OpsConformanceTest, GemmOfBf16RoundsOnceAcrossPanels) {
  std::mt19937_64 random(2);
  for (const DType c_type : {DType::kBF16, DType::kF32}) {
    for (const Sizes& sizes :
         {Sizes{3, 2, 2500}, Sizes{2, 2100, 5}, Sizes{1100, 3, 4}}) {
      for (const bool transposed : {false, true}) {
        ExpectIsReference(ops(),
                          {.transpose_a = transposed,
                           .transpose_b = !transposed,
                           .beta = 0.5},
                          sizes, DType::kBF16, c_type, random);
      }
    }
  }
}

// Compares GroupedGemm with a Gemm for each group.
void ExpectIsGemmOfEachGroup(Ops& ops, const GemmOptions& options,
                             const std::vector<int64_t>& rows, DType dtype,
                             DType c_type, std::mt19937_64& random,
                             bool same_bits = true) {
  SCOPED_TRACE(testing::Message()
               << dtype << " to " << c_type << " " << options.transpose_a
               << options.transpose_b << " beta " << options.beta);
  constexpr int64_t kWidth = 70, kOther = 33;
  const auto groups = static_cast<int64_t>(rows.size());
  const int64_t all = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  TestTensor a(dtype, {all, kWidth}, 3), b(dtype, {all, kOther}, 1);
  TestTensor c(c_type, {all, kOther}, 2);
  int64_t height = kWidth;  // Of each group's matrix.
  if (options.transpose_a) {
    c = TestTensor(c_type, {groups * kWidth, kOther}, 2);
  } else if (options.transpose_b) {
    height = kOther;
    b = TestTensor(dtype, {groups * kOther, kWidth}, 1);
  } else {
    b = TestTensor(dtype, {groups * kWidth, kOther}, 1);
  }
  for (TestTensor* const x : {&a, &b, &c}) x->Randomise(random);
  TestTensor expected = c;
  for (int64_t group = 0, first = 0; group < groups; ++group) {
    const int64_t count = rows[static_cast<size_t>(group)];
    const auto part = [&](const auto& x, bool is_stacked) {
      return is_stacked ? *x.Narrow(0, group * height, height)
                        : *x.Narrow(0, first, count);
    };
    TESSERA_ASSERT_OK(
        ops.Run(op::Gemm{options, part(ConstTensorView(a.view()), false),
                         part(ConstTensorView(b.view()), !options.transpose_a),
                         part(expected.view(), options.transpose_a)}));
    first += count;
  }
  TESSERA_ASSERT_OK(
      ops.Run(op::GroupedGemm{options, rows, a.view(), b.view(), c.view()}));
  if (same_bits) {
    EXPECT_EQ(c.values(), expected.values());
  } else {
    ExpectClose(c, expected.values(), 10);
  }
  EXPECT_TRUE(c.GapsAreIntact());
}

TEST_P(OpsConformanceTest, GroupedGemmIsAGemmOfEachGroup) {
  std::mt19937_64 random(3);
  for (const DType dtype : kComputedTypes) {
    for (const std::vector<int64_t>& rows :
         {std::vector<int64_t>{5}, {0, 40, 1, 0, 17}, {300, 3}, {0, 0}}) {
      for (const double beta : {0.0, 1.0, -0.5}) {
        for (const GemmOptions& options :
             {GemmOptions{.beta = beta},
              GemmOptions{.transpose_b = true, .alpha = 0.75, .beta = beta},
              GemmOptions{.transpose_a = true, .beta = beta}}) {
          ExpectIsGemmOfEachGroup(ops(), options, rows, dtype, dtype, random);
          if (dtype == DType::kBF16) {
            ExpectIsGemmOfEachGroup(ops(), options, rows, dtype, DType::kF32,
                                    random);
          }
        }
      }
    }
  }
}

// A library may compute equal groups as a batch, which sums in another order.
TEST_P(OpsConformanceTest, GroupedGemmOfEqualGroups) {
  std::mt19937_64 random(4);
  for (const std::vector<int64_t>& rows :
       {std::vector<int64_t>{40, 40, 40}, {1, 1}}) {
    for (const GemmOptions& options :
         {GemmOptions{}, GemmOptions{.transpose_b = true, .beta = 0.5},
          GemmOptions{.transpose_a = true, .beta = 1},
          GemmOptions{.alpha = 0, .beta = 1}}) {
      for (const auto& [from, to] : {std::pair{DType::kF32, DType::kF32},
                                     {DType::kBF16, DType::kBF16},
                                     {DType::kBF16, DType::kF32},
                                     {DType::kF64, DType::kF64}}) {
        ExpectIsGemmOfEachGroup(ops(), options, rows, from, to, random,
                                /*same_bits=*/false);
      }
    }
  }
}

TEST_P(OpsConformanceTest, GroupedGemmRejectsInvalidGroups) {
  const TestTensor a(DType::kF32, {5, 3}), b(DType::kF32, {6, 4});
  TestTensor c(DType::kF32, {5, 4});
  c.Set(std::vector<double>(20, 1));
  const auto rejects = [&](const GemmOptions& options,
                           const std::vector<int64_t>& rows,
                           const TestTensor& y, const char* text) {
    EXPECT_THAT(
        ops().Run(op::GroupedGemm{options, rows, a.view(), y.view(), c.view()}),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  rejects({}, {2, 2}, b,
          "GroupedGemm: the groups have [2,2] rows; these should be at least "
          "0, and their sum 5, the rows of \"a\".");
  rejects({}, {6, -1}, b, "the groups have [6,-1] rows");
  rejects({}, {}, b, "the groups have [] rows");
  rejects({.transpose_a = true, .transpose_b = true}, {2, 3}, b,
          "transpose_a and transpose_b are set; at most one may be.");
  rejects({}, {2, 2, 1, 0}, b,
          "\"b\" has shape [6,4]; it should have 2 dimensions, the first of "
          "which is a multiple of the 4 groups.");
  rejects({}, {5, 0, 0}, b, "\"b\" has shape [6,4]; it should have 9 rows.");
  rejects({.transpose_b = true}, {2, 3}, b,
          "\"b\" has shape [6,4]; it should be [6,3].");
  rejects({.transpose_a = true}, {2, 3}, b, "\"c\" has shape [5,4]");
  rejects({}, {2, 3}, TestTensor(DType::kF32, {6, 5}),
          "\"c\" has shape [5,4]; it should be [5,5].");
  EXPECT_EQ(c.values(), std::vector<double>(20, 1));
}

TEST_P(OpsConformanceTest, GemmRefusesWhatDoesNotFitAndWritesNothing) {
  const TestTensor a(DType::kF32, {2, 3}), b(DType::kF32, {3, 4});
  TestTensor c(DType::kF32, {2, 4});
  c.Set({1, 2, 3, 4, 5, 6, 7, 8});
  const auto refuses = [&](const GemmOptions& options, const TestTensor& x,
                           const TestTensor& y, const TensorView& z,
                           const char* text) {
    EXPECT_THAT(ops().Run(op::Gemm{options, x.view(), y.view(), z}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  refuses({.transpose_b = true}, a, b, c.view(),
          "Gemm: \"b\" has shape [3,4]; it should be [3,3].");
  refuses({}, a, b, TestTensor(DType::kF32, {4, 2}).view(),
          "Gemm: \"c\" has shape [4,2]; it should be [2,4].");
  refuses({}, a, b, TestTensor(DType::kBF16, {2, 4}).view(),
          "Gemm: \"c\" is of bf16; it should be of f32.");
  refuses({}, TestTensor(DType::kI8, {2, 3}), b, c.view(),
          "Gemm: \"a\" is of i8; it may be of f64, f32, bf16 or f16");
  refuses({}, TestTensor(DType::kF32, {6}), b, c.view(),
          "Gemm: \"a\" has shape [6]; it should have 2 dimensions.");
  refuses({}, a, TestTensor(DType::kF32, {12}), c.view(),
          "Gemm: \"b\" has shape [12]; it should have 2 dimensions.");
  EXPECT_THAT(
      ops().Run(op::Gemm{{}, *b.view().Transpose(0, 1), a.view(), c.view()}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("side by side")));
  EXPECT_EQ(c.values(), (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST_P(OpsConformanceTest, GemmRefusesRowsThatOverlap) {
  std::vector<float> values(12);
  const auto bytes = std::as_writable_bytes(std::span(values));
  const TensorView repeated = *TensorView::Create(
      bytes, DType::kF32, *Layout::Strided({{3, 4}}, {{0, 1}}));
  const TestTensor b(DType::kF32, {4, 2});
  TestTensor c(DType::kF32, {3, 2});
  EXPECT_THAT(ops().Run(op::Gemm{{}, repeated, b.view(), c.view()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rows should not overlap")));
  EXPECT_THAT(ops().Run(op::Gemm{{},
                                 TestTensor(DType::kF32, {3, 1}).view(),
                                 TestTensor(DType::kF32, {1, 4}).view(),
                                 repeated}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("should not overlap itself")));
}

}  // namespace
}  // namespace tessera::tensor_parallel
