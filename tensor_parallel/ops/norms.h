// Root mean square layer normalization (Zhang and Sennrich, NeurIPS 2019).
//
//   ops.Run(op::RmsNorm{1e-5, x, weight, y, inverse});
#ifndef TESSERA_TENSOR_PARALLEL_OPS_NORMS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_NORMS_H_

#include <cstdint>
#include <string_view>
#include <tuple>

#include "absl/status/status.h"
#include "base/device/operation.h"
#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel {

namespace op {

// y = x * inverse * weight over rows of x [rows, n], where inverse [rows], of
// statistics, is 1 / sqrt(mean(x^2) + epsilon) of the row.
struct RmsNorm {
  static constexpr std::string_view kName = "RmsNorm";
  double epsilon = 0;
  ConstTensorView x, weight;
  TensorView y, inverse;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(x, weight, y, inverse); }
};

// Sets x_gradient, which may be `gradient`.
struct RmsNormInputGradient {
  static constexpr std::string_view kName = "RmsNormInputGradient";
  ConstTensorView gradient, x, weight, inverse;
  TensorView x_gradient;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(gradient, x, weight, inverse, x_gradient); }
};

// Add{residual, x}, then RmsNorm of x, with the same bits, but memory is read
// and written once. y may be `residual`, but not x.
struct AddRmsNorm {
  static constexpr std::string_view kName = "AddRmsNorm";
  double epsilon = 0;
  ConstTensorView residual, weight;
  TensorView x, y, inverse;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(residual, weight, x, y, inverse); }
};

// RmsNormInputGradient, then Add{residual_gradient, x_gradient}, with the same
// bits. x_gradient may be `gradient` or `residual_gradient`.
struct AddRmsNormInputGradient {
  static constexpr std::string_view kName = "AddRmsNormInputGradient";
  ConstTensorView gradient, x, weight, inverse, residual_gradient;
  TensorView x_gradient;

  absl::Status Check(OperandChecker& check) const;
  auto operands() {
    return std::tie(gradient, x, weight, inverse, residual_gradient,
                    x_gradient);
  }
};

// AddRmsNormInputGradient and RmsNormWeightGradient, with the same bits, but
// memory is read once.
struct AddRmsNormGradients {
  static constexpr std::string_view kName = "AddRmsNormGradients";
  ConstTensorView gradient, x, weight, inverse, residual_gradient;
  TensorView x_gradient, weight_gradient;

  absl::Status Check(OperandChecker& check) const;
  auto operands() {
    return std::tie(gradient, x, weight, inverse, residual_gradient, x_gradient,
                    weight_gradient);
  }
};

// RmsNorm of rows of `width` elements, of which each rank has n: sums[i] is the
// rank's sum of squares of row i, as statistics, ...
struct RmsNormSums {
  static constexpr std::string_view kName = "RmsNormSums";
  ConstTensorView x;
  TensorView sums;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(x, sums); }
};

// ... from whose sum over the ranks the norm is computed.
struct RmsNormOfSums {
  static constexpr std::string_view kName = "RmsNormOfSums";
  double epsilon = 0;
  int64_t width = 1;
  ConstTensorView x, weight, sums;
  TensorView y, inverse;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(x, weight, sums, y, inverse); }
};

// The same for RmsNormInputGradient.
struct RmsNormGradientSums {
  static constexpr std::string_view kName = "RmsNormGradientSums";
  ConstTensorView gradient, x, weight, inverse;
  TensorView sums;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(gradient, x, weight, inverse, sums); }
};

struct RmsNormInputGradientOfSums {
  static constexpr std::string_view kName = "RmsNormInputGradientOfSums";
  int64_t width = 1;
  ConstTensorView gradient, x, weight, inverse, sums;
  TensorView x_gradient;

  absl::Status Check(OperandChecker& check) const;
  auto operands() {
    return std::tie(gradient, x, weight, inverse, sums, x_gradient);
  }
};

// Adds to weight_gradient [n], which may have the type of statistics. Separate
// from the gradient of the input, so that zero-bubble schedules can delay it.
struct RmsNormWeightGradient {
  static constexpr std::string_view kName = "RmsNormWeightGradient";
  ConstTensorView gradient, x, inverse;
  TensorView weight_gradient;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(gradient, x, inverse, weight_gradient); }
};

using Norms = OperationList<RmsNorm, RmsNormInputGradient, AddRmsNorm,
                            AddRmsNormInputGradient, AddRmsNormGradients,
                            RmsNormSums, RmsNormOfSums, RmsNormGradientSums,
                            RmsNormInputGradientOfSums, RmsNormWeightGradient>;

}  // namespace op

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_NORMS_H_
