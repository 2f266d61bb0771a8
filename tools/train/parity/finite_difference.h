// FiniteDifferences: gradients from values alone; RelativeDifference: how far
// two results are apart.
#ifndef TESSERA_TOOLS_TRAIN_PARITY_FINITE_DIFFERENCE_H_
#define TESSERA_TOOLS_TRAIN_PARITY_FINITE_DIFFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace tessera::train {

// d f() / d x[i] for every i, by central differences of fourth order; x is as
// it was behind it. Good to about 1e-10.
template <typename Function>
std::vector<double> FiniteDifferences(Function f, std::span<double> x,
                                      double step = 2e-4) {
  std::vector<double> derivatives;
  for (double& value : x) {
    const double middle = value;
    const auto at = [&](double offset) {
      value = middle + offset;
      return f();
    };
    const double near = at(step) - at(-step);
    const double far = at(2 * step) - at(-2 * step);
    value = middle;
    derivatives.push_back((8 * near - far) / (12 * step));
  }
  return derivatives;
}

// The largest difference, as a part of the largest of `expected`, or of `least`
// where that is larger. Infinite where the sizes differ, a number is none, or
// something differs from zeros alone.
inline double RelativeDifference(const std::vector<double>& actual,
                                 const std::vector<double>& expected,
                                 double least = 0) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (actual.size() != expected.size()) return kInfinity;
  double difference = 0, largest = least;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double d = std::abs(actual[i] - expected[i]);
    if (!std::isfinite(d)) return kInfinity;
    difference = std::max(difference, d);
    largest = std::max(largest, std::abs(expected[i]));
  }
  return difference == 0 ? 0 : difference / largest;
}

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PARITY_FINITE_DIFFERENCE_H_
