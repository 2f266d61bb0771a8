#include "tensor_parallel/ops/testing/test_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "base/dtype/convert_value.h"
#include "base/dtype/dtype_traits.h"
#include "gtest/gtest.h"

namespace tessera::tensor_parallel {
namespace {

constexpr std::byte kUntouched{0xa5};

Layout WithGaps(const Dims& shape, int64_t gap) {
  Dims strides(shape.size(), 1);
  int64_t stride = shape.empty() ? 1 : shape.back() + gap;
  for (size_t dim = shape.size() - 1; dim-- > 0 && !shape.empty();) {
    strides[dim] = stride;
    stride *= shape[dim];
  }
  return *Layout::Strided(shape, strides);
}

double BoundOf(DType dtype, double expected, double scale) {
  const double relative = dtype == DType::kF64 ? 1e-12 : 1e-5;
  const double rounding = dtype == DType::kBF16  ? 0x1p-8
                          : dtype == DType::kF16 ? 0x1p-11
                                                 : 0;
  // Half the distance of the type's subnormal numbers.
  const double least = dtype == DType::kF16 ? 0x1p-25 : 0;
  const double size = std::fabs(expected);
  return relative * std::max(size, scale) + rounding * size * 1.001 + least;
}

// Infinity unless both are NaN or neither is.
double ErrorOf(double actual, double expected) {
  if (std::isnan(actual) || std::isnan(expected)) {
    return std::isnan(actual) && std::isnan(expected)
               ? 0
               : std::numeric_limits<double>::infinity();
  }
  return actual == expected ? 0 : std::fabs(actual - expected);
}

}  // namespace

TestTensor::TestTensor(DType dtype, const Dims& shape, int64_t gap)
    : dtype_(dtype), layout_(WithGaps(shape, gap)) {
  const int64_t rows =
      shape.empty() || shape.back() == 0 ? 0 : size() / shape.back();
  const int64_t elements = shape.empty() ? 1 : rows * (shape.back() + gap);
  bytes_.assign(elements * SizeInBytes(dtype), kUntouched);
  Set(std::vector<double>(size(), 0.0));
}

TensorView TestTensor::view() const {
  auto& bytes = const_cast<std::vector<std::byte>&>(bytes_);
  return *TensorView::Create(std::span(bytes), dtype_, layout_);
}

std::vector<double> TestTensor::values() const {
  std::vector<double> values(size());
  for (int64_t i = 0; i < size(); ++i) values[i] = at(i);
  return values;
}

double TestTensor::at(int64_t index) const {
  return DispatchDType(dtype_, [&]<typename T>(std::type_identity<T>) {
    T element;
    std::memcpy(static_cast<void*>(&element),
                bytes_.data() + OffsetOf(index) * sizeof(T), sizeof(T));
    return ConvertValue<double>(element);
  });
}

void TestTensor::set(int64_t index, double value) {
  DispatchDType(dtype_, [&]<typename T>(std::type_identity<T>) {
    const T element = ConvertValue<T>(value);
    std::memcpy(bytes_.data() + OffsetOf(index) * sizeof(T), &element,
                sizeof(T));
  });
}

void TestTensor::Set(const std::vector<double>& values) {
  for (int64_t i = 0; i < size(); ++i) set(i, values[i]);
}

TestTensor& TestTensor::Randomise(std::mt19937_64& random, double scale) {
  std::normal_distribution<double> normal(0, scale);
  for (int64_t i = 0; i < size(); ++i) set(i, normal(random));
  return *this;
}

bool TestTensor::GapsAreIntact() const {
  std::vector<bool> is_element(bytes_.size(), false);
  const int64_t size = SizeInBytes(dtype_);
  for (int64_t i = 0; i < this->size(); ++i) {
    const int64_t begin = OffsetOf(i) * size;
    std::fill_n(is_element.begin() + begin, size, true);
  }
  for (size_t i = 0; i < bytes_.size(); ++i) {
    if (!is_element[i] && bytes_[i] != kUntouched) return false;
  }
  return true;
}

int64_t TestTensor::OffsetOf(int64_t index) const {
  int64_t offset = 0;
  for (int dim = layout_.rank() - 1; dim >= 0; --dim) {
    offset += index % shape()[dim] * layout_.strides()[dim];
    index /= shape()[dim];
  }
  return offset;
}

TestTensor RotaryTableOf(const Rotation& rotation,
                         std::span<const int64_t> positions, DType dtype) {
  TestTensor table(StatisticsFor(dtype),
                   {static_cast<int64_t>(positions.size()),
                    2 * static_cast<int64_t>(rotation.frequencies.size())});
  SetRotaryTable(rotation, positions, table.view());
  return table;
}

void ExpectClose(const TestTensor& actual, const std::vector<double>& expected,
                 double scale, const std::vector<double>& allowance) {
  ASSERT_EQ(actual.size(), static_cast<int64_t>(expected.size()));
  int failures = 0;
  for (int64_t i = 0; i < actual.size() && failures < 5; ++i) {
    const double bound = BoundOf(actual.dtype(), expected[i], scale) +
                         (allowance.empty() ? 0 : allowance[i]);
    // The tolerance of an infinite number would be NaN.
    const double error = ErrorOf(actual.at(i), expected[i]);
    const bool is_close = error == 0 || error <= bound;
    if (!is_close) ++failures;
    EXPECT_TRUE(is_close) << "element " << i << " of "
                          << DimsToString(actual.shape()) << " of "
                          << actual.dtype() << " is " << actual.at(i)
                          << ", not " << expected[i] << " within " << bound;
  }
}

double LargestError(const TestTensor& actual,
                    const std::vector<double>& expected, double scale,
                    const std::vector<double>& allowance) {
  double largest = 0;
  for (int64_t i = 0; i < actual.size(); ++i) {
    const double bound = BoundOf(actual.dtype(), expected[i], scale) +
                         (allowance.empty() ? 0 : allowance[i]);
    const double error = ErrorOf(actual.at(i), expected[i]);
    if (error > 0) largest = std::max(largest, error / bound);
  }
  return largest;
}

double Slope(TestTensor& x, int64_t index, const std::function<double()>& f,
             double step) {
  const double value = x.at(index);
  x.set(index, value + step);
  const double above = f();
  x.set(index, value - step);
  const double below = f();
  x.set(index, value);
  return (above - below) / (2 * step);
}

double Dot(const TestTensor& weights, const TestTensor& values) {
  double sum = 0;
  for (int64_t i = 0; i < weights.size(); ++i) {
    sum += weights.at(i) * values.at(i);
  }
  return sum;
}

}  // namespace tessera::tensor_parallel
