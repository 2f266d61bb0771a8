// TimedOps: operations like another's, and when they ran.
//
//   TimedOps timed(cpu_ops);
//   ... a step ...
//   const OpsTime time = timed.Take();
#ifndef TESSERA_TOOLS_TRAIN_REPORT_TIMED_OPS_H_
#define TESSERA_TOOLS_TRAIN_REPORT_TIMED_OPS_H_

#include <cstdint>
#include <utility>

#include "tensor_parallel/ops/ops.h"
#include "tools/train/report/spans.h"

namespace tessera::train {

struct OpsTime {
  // Spans that are less than 300 ns apart are one: reading the clock takes a
  // part of that.
  Spans spans = {};
  int64_t products_ns = 0;  // Of Gemm, Attend and AttendGradient.
};

class TimedOps final : public tensor_parallel::Ops {
 public:
  // `inner` outlives this.
  explicit TimedOps(tensor_parallel::Ops& inner) : inner_(inner) {}

  // Since the last call.
  OpsTime Take() { return std::exchange(time_, {}); }

  absl::Status Gemm(const tensor_parallel::GemmOptions& options,
                    ConstTensorView a, ConstTensorView b,
                    TensorView c) override;
  absl::Status AddBias(ConstTensorView bias, TensorView x) override;
  absl::Status SumRows(ConstTensorView gradient,
                       TensorView bias_gradient) override;
  absl::Status Copy(ConstTensorView x, TensorView y) override;
  absl::Status Add(ConstTensorView x, TensorView y) override;
  absl::Status Scale(double factor, TensorView x) override;
  absl::Status Fill(double value, TensorView x) override;
  absl::Status Cast(ConstTensorView x, TensorView y) override;
  absl::Status RmsNorm(double epsilon, ConstTensorView x,
                       ConstTensorView weight, TensorView y,
                       TensorView inverse) override;
  absl::Status RmsNormInputGradient(ConstTensorView gradient, ConstTensorView x,
                                    ConstTensorView weight,
                                    ConstTensorView inverse,
                                    TensorView x_gradient) override;
  absl::Status RmsNormWeightGradient(ConstTensorView gradient,
                                     ConstTensorView x, ConstTensorView inverse,
                                     TensorView weight_gradient) override;
  absl::Status LayerNorm(double epsilon, ConstTensorView x,
                         ConstTensorView weight, ConstTensorView bias,
                         TensorView y, TensorView mean,
                         TensorView inverse) override;
  absl::Status LayerNormInputGradient(ConstTensorView gradient,
                                      ConstTensorView x, ConstTensorView weight,
                                      ConstTensorView mean,
                                      ConstTensorView inverse,
                                      TensorView x_gradient) override;
  absl::Status LayerNormWeightGradient(ConstTensorView gradient,
                                       ConstTensorView x, ConstTensorView mean,
                                       ConstTensorView inverse,
                                       TensorView weight_gradient) override;
  absl::Status SwiGlu(ConstTensorView gate, ConstTensorView up,
                      TensorView y) override;
  absl::Status SwiGluGradient(ConstTensorView gradient, ConstTensorView gate,
                              ConstTensorView up, TensorView gate_gradient,
                              TensorView up_gradient) override;
  absl::Status Rotate(double base, bool inverse,
                      std::span<const int64_t> positions,
                      TensorView x) override;
  absl::Status GatherRows(ConstTensorView table,
                          tensor_parallel::IndexRange held,
                          std::span<const int64_t> ids, TensorView y) override;
  absl::Status AddRows(ConstTensorView gradient,
                       tensor_parallel::IndexRange held,
                       std::span<const int64_t> ids,
                       TensorView table_gradient) override;
  absl::Status RowMax(ConstTensorView logits, TensorView largest) override;
  absl::Status SumExp(ConstTensorView logits, ConstTensorView largest,
                      TensorView sum) override;
  absl::Status Pick(ConstTensorView logits, tensor_parallel::IndexRange held,
                    std::span<const int64_t> targets,
                    TensorView picked) override;
  absl::Status CrossEntropyLosses(ConstTensorView largest, ConstTensorView sum,
                                  ConstTensorView picked,
                                  std::span<double> losses) override;
  absl::Status CrossEntropyGradient(ConstTensorView largest,
                                    ConstTensorView sum,
                                    tensor_parallel::IndexRange held,
                                    std::span<const int64_t> targets,
                                    std::span<const double> scales,
                                    TensorView logits) override;
  absl::Status Attend(const tensor_parallel::AttentionBlock& block,
                      const tensor_parallel::AttentionState& state) override;
  absl::Status AttendGradient(
      const tensor_parallel::AttentionBlock& block,
      const tensor_parallel::AttentionGradients& gradients) override;
  absl::Status RowDots(ConstTensorView output, ConstTensorView output_gradient,
                       TensorView dots) override;

 private:
  class Timer;

  tensor_parallel::Ops& inner_;
  OpsTime time_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_TIMED_OPS_H_
