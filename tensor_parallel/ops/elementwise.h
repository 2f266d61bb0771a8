// Elementwise operations, and sums over rows.
//
//   ops.Run(op::Add{x, y});  // y += x
#ifndef TESSERA_TENSOR_PARALLEL_OPS_ELEMENTWISE_H_
#define TESSERA_TENSOR_PARALLEL_OPS_ELEMENTWISE_H_

#include <cstdint>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/device/operation.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/random/dropout.h"

namespace tessera::tensor_parallel {

namespace op {

// x[row] += bias, for rows of x [rows, n]; bias is [n].
struct AddBias {
  static constexpr std::string_view kName = "AddBias";
  ConstTensorView bias;
  TensorView x;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(bias, x); }
};

// bias_gradient += the sum of the rows of `gradient` [rows, n]. bias_gradient
// [n] may have the type of statistics.
struct SumRows {
  static constexpr std::string_view kName = "SumRows";
  ConstTensorView gradient;
  TensorView bias_gradient;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(gradient, bias_gradient); }
};

// The following six take tensors with any number of dimensions.

// y = x, of equal types and shapes, with any strides.
struct Copy {
  static constexpr std::string_view kName = "Copy";
  ConstTensorView x;
  TensorView y;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(x, y); }
};

// y += x; y may have the type of statistics.
struct Add {
  static constexpr std::string_view kName = "Add";
  ConstTensorView x;
  TensorView y;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(x, y); }
};

// x *= factor.
struct Scale {
  static constexpr std::string_view kName = "Scale";
  double factor = 1;
  TensorView x;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(x); }
};

// x = cap * tanh(x / cap), which is between -cap and cap. The error is some
// units in the last place of the cap.
struct SoftCap {
  static constexpr std::string_view kName = "SoftCap";
  double cap = 1;
  TensorView x;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(x); }
};

// x = value.
struct Fill {
  static constexpr std::string_view kName = "Fill";
  double value = 0;
  TensorView x;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(x); }
};

// y = x, between a type and its statistics, in both directions.
struct Cast {
  static constexpr std::string_view kName = "Cast";
  ConstTensorView x;
  TensorView y;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(x, y); }
};

// Drops elements of x [rows, width], which is contiguous (random/dropout.h).
struct Dropout {
  static constexpr std::string_view kName = "Dropout";
  DropoutMask mask;
  TensorView x;
  std::vector<int64_t> kept_rows = {};  // Of an enqueued operation.

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(x); }
  void Keep() {
    kept_rows.assign(mask.rows.begin(), mask.rows.end());
    mask.rows = kept_rows;
  }
};

// y[i] = scales[i] * x[i], for rows of x [rows, n]; scales [rows] are
// statistics. y may be x.
struct ScaleRows {
  static constexpr std::string_view kName = "ScaleRows";
  ConstTensorView scales, x;
  TensorView y;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(scales, x, y); }
};

// scales_gradient[i] = the sum of gradient[i] * x[i]; x_gradient[i] = scales[i]
// * gradient[i]. x_gradient may be `gradient`.
struct ScaleRowsGradient {
  static constexpr std::string_view kName = "ScaleRowsGradient";
  ConstTensorView gradient, scales, x;
  TensorView x_gradient, scales_gradient;

  absl::Status Check(OperandChecker& check) const;
  auto operands() {
    return std::tie(gradient, scales, x, x_gradient, scales_gradient);
  }
};

// total = factor * (x[0] + x[1] + ...), added in this order; x is f64 [n],
// `total` f64 with one element.
struct Sum {
  static constexpr std::string_view kName = "Sum";
  double factor = 1;
  ConstTensorView x;
  TensorView total;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(x, total); }
};

using Elementwise =
    OperationList<AddBias, SumRows, Copy, Add, Scale, SoftCap, Fill, Cast,
                  Dropout, ScaleRows, ScaleRowsGradient, Sum>;

}  // namespace op

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_ELEMENTWISE_H_
