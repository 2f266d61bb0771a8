#include "tools/train/report/timed_ops.h"

#include "collectives/engine/operation_context.h"

namespace tessera::train {

namespace tp = tensor_parallel;
using collectives::MonotonicNanos;

namespace {

constexpr int64_t kLeastGapNs = 300;

}  // namespace

class TimedOps::Timer {
 public:
  explicit Timer(TimedOps& ops, bool is_product = false)
      : time_(ops.time_), is_product_(is_product), begin_(MonotonicNanos()) {}

  ~Timer() {
    const int64_t end = MonotonicNanos();
    if (is_product_) time_.products_ns += end - begin_;
    Spans& spans = time_.spans;
    if (!spans.empty() && begin_ - spans.back().end < kLeastGapNs) {
      spans.back().end = end;
    } else if (end > begin_) {
      spans.push_back({begin_, end});
    }
  }

 private:
  OpsTime& time_;
  const bool is_product_;
  const int64_t begin_;
};

absl::Status TimedOps::Gemm(const tp::GemmOptions& options, ConstTensorView a,
                            ConstTensorView b, TensorView c) {
  const Timer timer(*this, /*is_product=*/true);
  return inner_.Gemm(options, a, b, c);
}

absl::Status TimedOps::AddBias(ConstTensorView bias, TensorView x) {
  const Timer timer(*this);
  return inner_.AddBias(bias, x);
}

absl::Status TimedOps::SumRows(ConstTensorView gradient,
                               TensorView bias_gradient) {
  const Timer timer(*this);
  return inner_.SumRows(gradient, bias_gradient);
}

absl::Status TimedOps::Copy(ConstTensorView x, TensorView y) {
  const Timer timer(*this);
  return inner_.Copy(x, y);
}

absl::Status TimedOps::Add(ConstTensorView x, TensorView y) {
  const Timer timer(*this);
  return inner_.Add(x, y);
}

absl::Status TimedOps::Scale(double factor, TensorView x) {
  const Timer timer(*this);
  return inner_.Scale(factor, x);
}

absl::Status TimedOps::Fill(double value, TensorView x) {
  const Timer timer(*this);
  return inner_.Fill(value, x);
}

absl::Status TimedOps::Cast(ConstTensorView x, TensorView y) {
  const Timer timer(*this);
  return inner_.Cast(x, y);
}

absl::Status TimedOps::RmsNorm(double epsilon, ConstTensorView x,
                               ConstTensorView weight, TensorView y,
                               TensorView inverse) {
  const Timer timer(*this);
  return inner_.RmsNorm(epsilon, x, weight, y, inverse);
}

absl::Status TimedOps::RmsNormInputGradient(ConstTensorView gradient,
                                            ConstTensorView x,
                                            ConstTensorView weight,
                                            ConstTensorView inverse,
                                            TensorView x_gradient) {
  const Timer timer(*this);
  return inner_.RmsNormInputGradient(gradient, x, weight, inverse, x_gradient);
}

absl::Status TimedOps::RmsNormWeightGradient(ConstTensorView gradient,
                                             ConstTensorView x,
                                             ConstTensorView inverse,
                                             TensorView weight_gradient) {
  const Timer timer(*this);
  return inner_.RmsNormWeightGradient(gradient, x, inverse, weight_gradient);
}

absl::Status TimedOps::LayerNorm(double epsilon, ConstTensorView x,
                                 ConstTensorView weight, ConstTensorView bias,
                                 TensorView y, TensorView mean,
                                 TensorView inverse) {
  const Timer timer(*this);
  return inner_.LayerNorm(epsilon, x, weight, bias, y, mean, inverse);
}

absl::Status TimedOps::LayerNormInputGradient(
    ConstTensorView gradient, ConstTensorView x, ConstTensorView weight,
    ConstTensorView mean, ConstTensorView inverse, TensorView x_gradient) {
  const Timer timer(*this);
  return inner_.LayerNormInputGradient(gradient, x, weight, mean, inverse,
                                       x_gradient);
}

absl::Status TimedOps::LayerNormWeightGradient(ConstTensorView gradient,
                                               ConstTensorView x,
                                               ConstTensorView mean,
                                               ConstTensorView inverse,
                                               TensorView weight_gradient) {
  const Timer timer(*this);
  return inner_.LayerNormWeightGradient(gradient, x, mean, inverse,
                                        weight_gradient);
}

absl::Status TimedOps::SwiGlu(ConstTensorView gate, ConstTensorView up,
                              TensorView y) {
  const Timer timer(*this);
  return inner_.SwiGlu(gate, up, y);
}

absl::Status TimedOps::SwiGluGradient(ConstTensorView gradient,
                                      ConstTensorView gate, ConstTensorView up,
                                      TensorView gate_gradient,
                                      TensorView up_gradient) {
  const Timer timer(*this);
  return inner_.SwiGluGradient(gradient, gate, up, gate_gradient, up_gradient);
}

absl::Status TimedOps::Rotate(double base, bool inverse,
                              std::span<const int64_t> positions,
                              TensorView x) {
  const Timer timer(*this);
  return inner_.Rotate(base, inverse, positions, x);
}

absl::Status TimedOps::GatherRows(ConstTensorView table, tp::IndexRange held,
                                  std::span<const int64_t> ids, TensorView y) {
  const Timer timer(*this);
  return inner_.GatherRows(table, held, ids, y);
}

absl::Status TimedOps::AddRows(ConstTensorView gradient, tp::IndexRange held,
                               std::span<const int64_t> ids,
                               TensorView table_gradient) {
  const Timer timer(*this);
  return inner_.AddRows(gradient, held, ids, table_gradient);
}

absl::Status TimedOps::RowMax(ConstTensorView logits, TensorView largest) {
  const Timer timer(*this);
  return inner_.RowMax(logits, largest);
}

absl::Status TimedOps::SumExp(ConstTensorView logits, ConstTensorView largest,
                              TensorView sum) {
  const Timer timer(*this);
  return inner_.SumExp(logits, largest, sum);
}

absl::Status TimedOps::Pick(ConstTensorView logits, tp::IndexRange held,
                            std::span<const int64_t> targets,
                            TensorView picked) {
  const Timer timer(*this);
  return inner_.Pick(logits, held, targets, picked);
}

absl::Status TimedOps::CrossEntropyLosses(ConstTensorView largest,
                                          ConstTensorView sum,
                                          ConstTensorView picked,
                                          std::span<double> losses) {
  const Timer timer(*this);
  return inner_.CrossEntropyLosses(largest, sum, picked, losses);
}

absl::Status TimedOps::CrossEntropyGradient(ConstTensorView largest,
                                            ConstTensorView sum,
                                            tp::IndexRange held,
                                            std::span<const int64_t> targets,
                                            std::span<const double> scales,
                                            TensorView logits) {
  const Timer timer(*this);
  return inner_.CrossEntropyGradient(largest, sum, held, targets, scales,
                                     logits);
}

absl::Status TimedOps::Attend(const tp::AttentionBlock& block,
                              const tp::AttentionState& state) {
  const Timer timer(*this, /*is_product=*/true);
  return inner_.Attend(block, state);
}

absl::Status TimedOps::AttendGradient(const tp::AttentionBlock& block,
                                      const tp::AttentionGradients& gradients) {
  const Timer timer(*this, /*is_product=*/true);
  return inner_.AttendGradient(block, gradients);
}

absl::Status TimedOps::RowDots(ConstTensorView output,
                               ConstTensorView output_gradient,
                               TensorView dots) {
  const Timer timer(*this);
  return inner_.RowDots(output, output_gradient, dots);
}

}  // namespace tessera::train
