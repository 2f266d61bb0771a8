#include "tensor_parallel/ops_cpu/rowwise/elementwise.h"

#include <cstdint>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/copy.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops_cpu/operand/operand_checker.h"
#include "tensor_parallel/ops_cpu/operand/rows_view.h"
#include "tensor_parallel/ops_cpu/rowwise/elementwise_kernels.h"

namespace tessera::tensor_parallel::cpu {
namespace {

using Step = ElementwiseJob::Step;

// Runs `job` on x and y of one shape and any number of dimensions: as one row
// where there are no gaps, else by its last two dimensions.
absl::Status RunOnRows(ElementwiseJob job, const ConstTensorView& x,
                       const TensorView& y) {
  if (x.element_count() == 0) return absl::OkStatus();
  if (x.rank() > 2 && !(x.IsContiguous() && y.IsContiguous())) {
    for (int64_t i = 0; i < x.shape()[0]; ++i) {
      TESSERA_ASSIGN_OR_RETURN(ConstTensorView x_part, x.Select(0, i));
      TESSERA_ASSIGN_OR_RETURN(TensorView y_part, y.Select(0, i));
      TESSERA_RETURN_IF_ERROR(RunOnRows(job, x_part, y_part));
    }
    return absl::OkStatus();
  }
  const bool is_matrix =
      x.rank() == 2 && !(x.IsContiguous() && y.IsContiguous());
  job.rows = is_matrix ? x.shape()[0] : 1;
  job.n = is_matrix ? x.shape()[1] : x.element_count();
  job.x = ConstRowsView(x.data(), is_matrix ? x.strides()[0] : 0);
  job.y = RowsView(y.data(), is_matrix ? y.strides()[0] : 0);
  RunElementwise(job);
  return absl::OkStatus();
}

}  // namespace

absl::Status AddBias(const ConstTensorView& bias, const TensorView& x) {
  OperandChecker check("AddBias");
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 2));
  check.Writes("x", x, x.shape()).Reads("bias", bias, {{x.shape()[1]}});
  TESSERA_RETURN_IF_ERROR(check.status());
  RunElementwise({.step = Step::kAddToRows,
                  .x_type = x.dtype(),
                  .y_type = x.dtype(),
                  .rows = x.shape()[0],
                  .n = x.shape()[1],
                  .x = ConstRowsView(bias),
                  .y = RowsView(x)});
  return absl::OkStatus();
}

absl::Status SumRows(const ConstTensorView& gradient,
                     const TensorView& bias_gradient) {
  OperandChecker check("SumRows");
  TESSERA_RETURN_IF_ERROR(check.Leads("gradient", gradient, 2));
  check.WritesEither("bias_gradient", bias_gradient, {{gradient.shape()[1]}});
  TESSERA_RETURN_IF_ERROR(check.status());
  RunElementwise({.step = Step::kSumRows,
                  .x_type = gradient.dtype(),
                  .y_type = bias_gradient.dtype(),
                  .rows = gradient.shape()[0],
                  .n = gradient.shape()[1],
                  .x = ConstRowsView(gradient),
                  .y = RowsView(bias_gradient)});
  return absl::OkStatus();
}

absl::Status Add(const ConstTensorView& x, const TensorView& y) {
  OperandChecker check("Add");
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x));
  check.WritesEither("y", y, x.shape());
  TESSERA_RETURN_IF_ERROR(check.status());
  return RunOnRows(
      {
          .step = Step::kAdd,
          .x_type = x.dtype(),
          .y_type = y.dtype(),
      },
      x, y);
}

absl::Status Scale(double factor, const TensorView& x) {
  OperandChecker check("Scale");
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x));
  check.Writes("x", x, x.shape());
  TESSERA_RETURN_IF_ERROR(check.status());
  return RunOnRows(
      {
          .step = Step::kScale,
          .x_type = x.dtype(),
          .y_type = x.dtype(),
          .factor = factor,
      },
      x, x);
}

absl::Status Fill(double value, const TensorView& x) {
  OperandChecker check("Fill");
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x));
  check.Writes("x", x, x.shape());
  TESSERA_RETURN_IF_ERROR(check.status());
  return tessera::Fill(x, value);
}

absl::Status Cast(const ConstTensorView& x, const TensorView& y) {
  OperandChecker check("Cast");
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x));
  if (x.dtype() == DType::kF32 && y.dtype() == DType::kBF16) {
    TESSERA_RETURN_IF_ERROR(check.Leads("y", y));  // x is its statistics.
    check.Writes("y", y, x.shape());
  } else {
    check.WritesEither("y", y, x.shape());
  }
  TESSERA_RETURN_IF_ERROR(check.status());
  return RunOnRows(
      {
          .step = Step::kCast,
          .x_type = x.dtype(),
          .y_type = y.dtype(),
      },
      x, y);
}

absl::Status RowDots(const ConstTensorView& output,
                     const ConstTensorView& output_gradient,
                     const TensorView& dots) {
  OperandChecker check("RowDots");
  TESSERA_RETURN_IF_ERROR(check.Leads("output_gradient", output_gradient, 3));
  check.ReadsStatistics("output", output, output_gradient.shape())
      .WritesStatistics(
          "dots", dots,
          {{output_gradient.shape()[0], output_gradient.shape()[1]}});
  TESSERA_RETURN_IF_ERROR(check.status());
  const int64_t heads = output_gradient.shape()[1],
                d = output_gradient.shape()[2];
  const int64_t size = SizeInBytes(output.dtype());
  for (int64_t i = 0; i < output_gradient.shape()[0]; ++i) {
    RunElementwise(
        {.step = Step::kDots,
         .x_type = output.dtype(),
         .y_type = output_gradient.dtype(),
         .rows = heads,
         .n = d,
         .x = ConstRowsView(output.data() + i * heads * d * size, d),
         .z = ConstRowsView(
             output_gradient.data() + i * output_gradient.strides()[0] *
                                          SizeInBytes(output_gradient.dtype()),
             output_gradient.strides()[1]),
         .y = RowsView(dots.data() + i * heads * size, heads)});
  }
  return absl::OkStatus();
}

}  // namespace tessera::tensor_parallel::cpu
