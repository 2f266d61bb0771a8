#include "tensor_parallel/ops_cpu/rowwise/norms.h"

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops_cpu/operand/operand_checker.h"
#include "tensor_parallel/ops_cpu/operand/rows_view.h"
#include "tensor_parallel/ops_cpu/rowwise/norm_kernels.h"

namespace tessera::tensor_parallel::cpu {
namespace {

// Statistics are written by the forward alone.
RowsView StatisticsView(const ConstTensorView& view) {
  return RowsView(const_cast<std::byte*>(view.data()), 0);
}

NormJob JobOn(NormJob::Step step, const ConstTensorView& x) {
  return {.step = step,
          .dtype = x.dtype(),
          .rows = x.shape()[0],
          .n = x.shape()[1],
          .x = ConstRowsView(x)};
}

// What both forwards ask of what both have.
absl::Status CheckForward(OperandChecker& check, double epsilon,
                          const ConstTensorView& x,
                          const ConstTensorView& weight, const TensorView& y,
                          const TensorView& inverse) {
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 2));
  return check.Reads("weight", weight, {{x.shape()[1]}})
      .Writes("y", y, x.shape())
      .WritesStatistics("inverse", inverse, {{x.shape()[0]}})
      .Requires(epsilon >= 0, absl::StrCat("epsilon is ", epsilon,
                                           "; it should be at least 0."))
      .status();
}

absl::Status CheckGradient(OperandChecker& check,
                           const ConstTensorView& gradient,
                           const ConstTensorView& x,
                           const ConstTensorView& inverse) {
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 2));
  return check.Reads("gradient", gradient, x.shape())
      .ReadsStatistics("inverse", inverse, {{x.shape()[0]}})
      .status();
}

absl::Status InputGradient(OperandChecker& check,
                           const ConstTensorView& gradient,
                           const ConstTensorView& x,
                           const ConstTensorView& weight,
                           const ConstTensorView* mean,
                           const ConstTensorView& inverse,
                           const TensorView& x_gradient) {
  TESSERA_RETURN_IF_ERROR(CheckGradient(check, gradient, x, inverse));
  check.Reads("weight", weight, {{x.shape()[1]}})
      .Writes("x_gradient", x_gradient, x.shape());
  if (mean != nullptr) check.ReadsStatistics("mean", *mean, {{x.shape()[0]}});
  TESSERA_RETURN_IF_ERROR(check.status());
  NormJob job = JobOn(NormJob::Step::kInputGradient, x);
  job.gradient = ConstRowsView(gradient);
  job.weight = ConstRowsView(weight);
  job.centred = mean != nullptr;
  if (mean != nullptr) job.mean = StatisticsView(*mean);
  job.inverse = StatisticsView(inverse);
  job.y = RowsView(x_gradient);
  RunNorm(job);
  return absl::OkStatus();
}

absl::Status WeightGradient(OperandChecker& check,
                            const ConstTensorView& gradient,
                            const ConstTensorView& x,
                            const ConstTensorView* mean,
                            const ConstTensorView& inverse,
                            const TensorView& weight_gradient) {
  TESSERA_RETURN_IF_ERROR(CheckGradient(check, gradient, x, inverse));
  check.WritesEither("weight_gradient", weight_gradient, {{x.shape()[1]}});
  if (mean != nullptr) check.ReadsStatistics("mean", *mean, {{x.shape()[0]}});
  TESSERA_RETURN_IF_ERROR(check.status());
  NormJob job = JobOn(NormJob::Step::kWeightGradient, x);
  job.target_type = weight_gradient.dtype();
  job.gradient = ConstRowsView(gradient);
  job.centred = mean != nullptr;
  if (mean != nullptr) job.mean = StatisticsView(*mean);
  job.inverse = StatisticsView(inverse);
  job.y = RowsView(weight_gradient);
  RunNorm(job);
  return absl::OkStatus();
}

}  // namespace

absl::Status RmsNorm(double epsilon, const ConstTensorView& x,
                     const ConstTensorView& weight, const TensorView& y,
                     const TensorView& inverse) {
  OperandChecker check("RmsNorm");
  TESSERA_RETURN_IF_ERROR(CheckForward(check, epsilon, x, weight, y, inverse));
  NormJob job = JobOn(NormJob::Step::kForward, x);
  job.epsilon = epsilon;
  job.weight = ConstRowsView(weight);
  job.inverse = RowsView(inverse);
  job.y = RowsView(y);
  RunNorm(job);
  return absl::OkStatus();
}

absl::Status RmsNormInputGradient(const ConstTensorView& gradient,
                                  const ConstTensorView& x,
                                  const ConstTensorView& weight,
                                  const ConstTensorView& inverse,
                                  const TensorView& x_gradient) {
  OperandChecker check("RmsNormInputGradient");
  return InputGradient(check, gradient, x, weight, nullptr, inverse,
                       x_gradient);
}

absl::Status RmsNormWeightGradient(const ConstTensorView& gradient,
                                   const ConstTensorView& x,
                                   const ConstTensorView& inverse,
                                   const TensorView& weight_gradient) {
  OperandChecker check("RmsNormWeightGradient");
  return WeightGradient(check, gradient, x, nullptr, inverse, weight_gradient);
}

absl::Status LayerNorm(double epsilon, const ConstTensorView& x,
                       const ConstTensorView& weight,
                       const ConstTensorView& bias, const TensorView& y,
                       const TensorView& mean, const TensorView& inverse) {
  OperandChecker check("LayerNorm");
  TESSERA_RETURN_IF_ERROR(CheckForward(check, epsilon, x, weight, y, inverse));
  check.Reads("bias", bias, {{x.shape()[1]}})
      .WritesStatistics("mean", mean, {{x.shape()[0]}});
  TESSERA_RETURN_IF_ERROR(check.status());
  NormJob job = JobOn(NormJob::Step::kForward, x);
  job.centred = true;
  job.epsilon = epsilon;
  job.weight = ConstRowsView(weight);
  job.bias = ConstRowsView(bias);
  job.mean = RowsView(mean);
  job.inverse = RowsView(inverse);
  job.y = RowsView(y);
  RunNorm(job);
  return absl::OkStatus();
}

absl::Status LayerNormInputGradient(const ConstTensorView& gradient,
                                    const ConstTensorView& x,
                                    const ConstTensorView& weight,
                                    const ConstTensorView& mean,
                                    const ConstTensorView& inverse,
                                    const TensorView& x_gradient) {
  OperandChecker check("LayerNormInputGradient");
  return InputGradient(check, gradient, x, weight, &mean, inverse, x_gradient);
}

absl::Status LayerNormWeightGradient(const ConstTensorView& gradient,
                                     const ConstTensorView& x,
                                     const ConstTensorView& mean,
                                     const ConstTensorView& inverse,
                                     const TensorView& weight_gradient) {
  OperandChecker check("LayerNormWeightGradient");
  return WeightGradient(check, gradient, x, &mean, inverse, weight_gradient);
}

}  // namespace tessera::tensor_parallel::cpu
