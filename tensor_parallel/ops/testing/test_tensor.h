// Tensors for the tests of operations: any type, with gaps between rows, set
// and read as f64.
//
//   TestTensor x(DType::kBF16, {3, 7}, /*gap=*/5);
//   x.Randomise(random);
//   ... ops.Run(op::Scale{2, x.view()}) ...
//   ExpectClose(x, expected);
//   EXPECT_TRUE(x.GapsAreIntact());
#ifndef TESSERA_TENSOR_PARALLEL_OPS_TESTING_TEST_TENSOR_H_
#define TESSERA_TENSOR_PARALLEL_OPS_TESTING_TEST_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/tensor/layout.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/rotary.h"

namespace tessera::tensor_parallel {

inline constexpr DType kComputedTypes[] = {DType::kF64, DType::kF32,
                                           DType::kBF16, DType::kF16};

// The type in which values of `dtype` are accumulated (ops.h).
constexpr DType StatisticsFor(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

// Lists of numbers as operands.
inline ConstTensorView ListOf(std::span<const int64_t> values) {
  return *ConstTensorView::Of(values, {{static_cast<int64_t>(values.size())}});
}
inline ConstTensorView ListOf(std::span<const double> values) {
  return *ConstTensorView::Of(values, {{static_cast<int64_t>(values.size())}});
}

class TestTensor {
 public:
  // Elements are zero. `gap` elements follow each row (the last dimension).
  TestTensor(DType dtype, const Dims& shape, int64_t gap = 0);

  TensorView view() const;
  DType dtype() const { return dtype_; }
  const Dims& shape() const { return layout_.shape(); }
  int64_t size() const { return layout_.element_count(); }

  // Row-major.
  std::vector<double> values() const;
  double at(int64_t index) const;
  void set(int64_t index, double value);
  void Set(const std::vector<double>& values);
  // Sets the elements to numbers from the normal distribution, rounded to the
  // type.
  TestTensor& Randomise(std::mt19937_64& random, double scale = 1);

  // Returns true if the gaps between the rows are unchanged.
  bool GapsAreIntact() const;
  // Every byte, including the gaps.
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  int64_t OffsetOf(int64_t index) const;

  DType dtype_;
  Layout layout_;
  std::vector<std::byte> bytes_;
};

// The table of op::Rotate for heads of `dtype`.
TestTensor RotaryTableOf(const Rotation& rotation,
                         std::span<const int64_t> positions, DType dtype);

// Expects each value within 1e-12 (f64) or 1e-5 (f32) of `expected`, relative
// to the larger of `expected` and `scale`; for bf16, the tolerance of f32 plus
// the rounding to bf16. If `allowance` is not empty, its elements are added to
// the tolerances.
void ExpectClose(const TestTensor& actual, const std::vector<double>& expected,
                 double scale = 1, const std::vector<double>& allowance = {});

// The largest distance of an element from `expected`, in units of the tolerance
// of ExpectClose; infinity if exactly one of the two is NaN.
double LargestError(const TestTensor& actual,
                    const std::vector<double>& expected, double scale = 1,
                    const std::vector<double>& allowance = {});

// The derivatives d f / d x[i], by central differences; x is f64 and is
// restored.
double Slope(TestTensor& x, int64_t index, const std::function<double()>& f,
             double step = 1e-5);

// The sum of weights[i] * values[i]: a scalar function of a tensor whose
// gradient is `weights`.
double Dot(const TestTensor& weights, const TestTensor& values);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_TESTING_TEST_TENSOR_H_
