#include "tensor_parallel/ops_cpu/cpu_ops.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/os/processors.h"
#include "base/tensor/copy.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cpu/attention.h"
#include "tensor_parallel/ops_cpu/elementwise.h"
#include "tensor_parallel/ops_cpu/gemm.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {
namespace {

int ThreadsOf(const CpuOpsOptions& options) {
  if (options.threads > 0) return options.threads;
  const int64_t ranks = std::max(options.ranks_in_process, 1);
  return static_cast<int>(std::max<int64_t>(AvailableProcessors() / ranks, 1));
}

}  // namespace

CpuOps::CpuOps(const CpuOpsOptions& options) {
  cpu::LimitBlasThreads(ThreadsOf(options));
}

absl::Status CpuOps::Gemm(const GemmOptions& options, ConstTensorView a,
                          ConstTensorView b, TensorView c) {
  return cpu::Gemm(options, a, b, c);
}

absl::Status CpuOps::AddBias(ConstTensorView bias, TensorView x) {
  return cpu::AddBias(bias, x);
}

absl::Status CpuOps::SumRows(ConstTensorView gradient,
                             TensorView bias_gradient) {
  return cpu::SumRows(gradient, bias_gradient);
}

absl::Status CpuOps::Copy(ConstTensorView x, TensorView y) {
  return tessera::Copy(x, y);
}

absl::Status CpuOps::Add(ConstTensorView x, TensorView y) {
  return cpu::Add(x, y);
}

absl::Status CpuOps::Scale(double factor, TensorView x) {
  return cpu::Scale(factor, x);
}

absl::Status CpuOps::Fill(double value, TensorView x) {
  return cpu::Fill(value, x);
}

absl::Status CpuOps::Cast(ConstTensorView x, TensorView y) {
  return cpu::Cast(x, y);
}

absl::Status CpuOps::Dropout(const DropoutMask& mask, TensorView x) {
  return ApplyDropout(mask, x);
}

absl::Status CpuOps::RmsNorm(double epsilon, ConstTensorView x,
                             ConstTensorView weight, TensorView y,
                             TensorView inverse) {
  return cpu::RmsNorm(epsilon, x, weight, y, inverse);
}

absl::Status CpuOps::RmsNormInputGradient(ConstTensorView gradient,
                                          ConstTensorView x,
                                          ConstTensorView weight,
                                          ConstTensorView inverse,
                                          TensorView x_gradient) {
  return cpu::RmsNormInputGradient(gradient, x, weight, inverse, x_gradient);
}

absl::Status CpuOps::RmsNormWeightGradient(ConstTensorView gradient,
                                           ConstTensorView x,
                                           ConstTensorView inverse,
                                           TensorView weight_gradient) {
  return cpu::RmsNormWeightGradient(gradient, x, inverse, weight_gradient);
}

absl::Status CpuOps::SwiGlu(ConstTensorView gate, ConstTensorView up,
                            TensorView y) {
  return cpu::SwiGlu(gate, up, y);
}

absl::Status CpuOps::SwiGluGradient(ConstTensorView gradient,
                                    ConstTensorView gate, ConstTensorView up,
                                    TensorView gate_gradient,
                                    TensorView up_gradient) {
  return cpu::SwiGluGradient(gradient, gate, up, gate_gradient, up_gradient);
}

absl::Status CpuOps::Rotate(double base, bool inverse,
                            std::span<const int64_t> positions, TensorView x) {
  return rotary_.Rotate(base, inverse, positions, x);
}

absl::Status CpuOps::GatherRows(ConstTensorView table, IndexRange held,
                                std::span<const int64_t> ids, TensorView y) {
  return cpu::GatherRows(table, held, ids, y);
}

absl::Status CpuOps::AddRows(ConstTensorView gradient, IndexRange held,
                             std::span<const int64_t> ids,
                             TensorView table_gradient) {
  return cpu::AddRows(gradient, held, ids, table_gradient);
}

absl::Status CpuOps::RowMax(ConstTensorView logits, TensorView largest) {
  return cpu::RowMax(logits, largest);
}

absl::Status CpuOps::SumExp(ConstTensorView logits, ConstTensorView largest,
                            TensorView sum) {
  return cpu::SumExp(logits, largest, sum);
}

absl::Status CpuOps::Pick(ConstTensorView logits, IndexRange held,
                          std::span<const int64_t> targets, TensorView picked) {
  return cpu::Pick(logits, held, targets, picked);
}

absl::Status CpuOps::CrossEntropyLosses(ConstTensorView largest,
                                        ConstTensorView sum,
                                        ConstTensorView picked,
                                        std::span<double> losses) {
  return cpu::CrossEntropyLosses(largest, sum, picked, losses);
}

absl::Status CpuOps::CrossEntropyGradient(ConstTensorView largest,
                                          ConstTensorView sum, IndexRange held,
                                          std::span<const int64_t> targets,
                                          std::span<const double> scales,
                                          TensorView logits) {
  return cpu::CrossEntropyGradient(largest, sum, held, targets, scales, logits);
}

absl::Status CpuOps::Attend(const AttentionBlock& block,
                            const AttentionState& state) {
  return cpu::Attend(block, state);
}

absl::Status CpuOps::AttendGradient(const AttentionBlock& block,
                                    const AttentionGradients& gradients) {
  return cpu::AttendGradient(block, gradients);
}

absl::Status CpuOps::RowDots(ConstTensorView output,
                             ConstTensorView output_gradient, TensorView dots) {
  return cpu::RowDots(output, output_gradient, dots);
}

}  // namespace tessera::tensor_parallel
