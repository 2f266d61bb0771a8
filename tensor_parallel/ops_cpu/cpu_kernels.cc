#include "tensor_parallel/ops_cpu/cpu_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/copy.h"
#include "base/tensor/layout.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/operand_checker.h"
#include "tensor_parallel/ops_cpu/attention.h"
#include "tensor_parallel/ops_cpu/fp8.h"
#include "tensor_parallel/ops_cpu/gemm.h"
#include "tensor_parallel/ops_cpu/kernels.h"
#include "tensor_parallel/random/dropout.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::cpu {

namespace {

using Step = ElementwiseJob::Step;

// Runs `job` on x and y of one shape and any number of dimensions: as one row
// if they are contiguous, else by their last two dimensions.
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

// The places of ids that are held, by id, and by place where equal.
std::vector<int64_t> HeldInOrder(IndexRange held,
                                 std::span<const int64_t> ids) {
  std::vector<int64_t> order;
  order.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (held.contains(ids[i])) order.push_back(static_cast<int64_t>(i));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return ids[a] < ids[b]; });
  return order;
}

using CrossEntropyStep = CrossEntropyJob::Step;

CrossEntropyJob JobOn(CrossEntropyStep step, const ConstTensorView& logits) {
  return {.step = step,
          .dtype = logits.dtype(),
          .rows = logits.shape()[0],
          .held = {0, logits.shape()[1]},
          .logits = ConstRowsView(logits)};
}

// The numbers of a list that was checked.
template <typename T>
std::span<const T> ListOf(const ConstTensorView& view) {
  return {reinterpret_cast<const T*>(view.data()),
          static_cast<size_t>(view.element_count())};
}

// By token, from the statistics of all ranks.
template <typename T>
void SetLosses(const ConstTensorView& largest, const ConstTensorView& sum,
               const ConstTensorView& picked, const TensorView& losses) {
  const auto m = ListOf<T>(largest), s = ListOf<T>(sum), p = ListOf<T>(picked);
  auto* const result = reinterpret_cast<double*>(losses.data());
  for (size_t i = 0; i < m.size(); ++i) {
    // The difference first: large logits would swallow the logarithm.
    result[i] = std::log(static_cast<double>(s[i])) +
                (static_cast<double>(m[i]) - static_cast<double>(p[i]));
  }
}

// By row of the last two dimensions; the others may have any strides.
absl::Status DotRows(const ConstTensorView& x, const ConstTensorView& z,
                     const TensorView& dots) {
  if (x.rank() == 2) {
    RunElementwise({.step = Step::kDots,
                    .x_type = x.dtype(),
                    .y_type = z.dtype(),
                    .rows = x.shape()[0],
                    .n = x.shape()[1],
                    .x = ConstRowsView(x),
                    .z = ConstRowsView(z),
                    .y = RowsView(dots)});
    return absl::OkStatus();
  }
  for (int64_t i = 0; i < x.shape()[0]; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView x_part, x.Select(0, i));
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView z_part, z.Select(0, i));
    TESSERA_ASSIGN_OR_RETURN(const TensorView dots_part, dots.Select(0, i));
    TESSERA_RETURN_IF_ERROR(DotRows(x_part, z_part, dots_part));
  }
  return absl::OkStatus();
}

// Copies rows of the table that are held, and zeros for others.
void CopyHeldRows(const ConstTensorView& table, IndexRange held,
                  std::span<const int64_t> ids, const TensorView& y) {
  const int64_t size = SizeInBytes(table.dtype());
  const auto bytes = static_cast<size_t>(table.shape()[1] * size);
  if (bytes == 0) return;
  for (size_t i = 0; i < ids.size(); ++i) {
    std::byte* const to =
        y.data() + static_cast<int64_t>(i) * y.strides()[0] * size;
    if (held.contains(ids[i])) {
      const int64_t row = ids[i] - held.begin;
      std::memcpy(to, table.data() + row * table.strides()[0] * size, bytes);
    } else {
      std::memset(to, 0, bytes);
    }
  }
}

void AddHeldRows(const ConstTensorView& gradient, IndexRange held,
                 std::span<const int64_t> ids,
                 const TensorView& table_gradient) {
  const std::vector<int64_t> order = HeldInOrder(held, ids);
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    const int64_t id = ids[order[begin]];
    while (end < order.size() && ids[order[end]] == id) ++end;
    const int64_t offset = (id - held.begin) * table_gradient.strides()[0];
    RunAddRows(
        {.dtype = gradient.dtype(),
         .target_type = table_gradient.dtype(),
         .n = gradient.shape()[1],
         .gradient = ConstRowsView(gradient),
         .rows = std::span(order).subspan(begin, end - begin),
         .target = RowsView(table_gradient.data() +
                                offset * SizeInBytes(table_gradient.dtype()),
                            0)});
  }
}

template <typename S>
void RotateHeads(RotaryTable& table, double base, bool inverse,
                 const ConstTensorView& positions, const TensorView& x) {
  const int64_t d = x.shape()[2];
  const S* const angles = table.Get<S>(base, d, ListOf<int64_t>(positions));
  for (int64_t i = 0; i < x.shape()[0]; ++i) {
    RunRotary(
        {.dtype = x.dtype(),
         .inverse = inverse,
         .heads = x.shape()[1],
         .d = d,
         .table = angles + i * d,
         .x = RowsView(x.data() + i * x.strides()[0] * SizeInBytes(x.dtype()),
                       x.strides()[1])});
  }
}

// Gradients of keys and values are written by BLAS.
void RequireBlasTokens(OperandChecker& check, std::string_view name,
                       const TensorView& x) {
  const int64_t stride = x.strides()[1];
  if (x.shape()[1] <= 1 || x.element_count() == 0 ||
      (stride >= x.shape()[3] && stride <= kLargestBlasSize)) {
    return;
  }
  check.Requires(
      false,
      absl::StrCat("\"", name, "\" has strides ", DimsToString(x.strides()),
                   " under shape ", DimsToString(x.shape()),
                   "; keys should be apart by at least a head and at "
                   "most ",
                   kLargestBlasSize, " elements."));
}

}  // namespace

template <typename S>
const S* RotaryTable::Get(double base, int64_t d,
                          std::span<const int64_t> positions) {
  std::vector<S>& table = [this]() -> std::vector<S>& {
    if constexpr (std::is_same_v<S, float>) {
      return f32_;
    } else {
      return f64_;
    }
  }();
  if (base == base_ && d == d_ && table.size() == positions.size() * d &&
      std::equal(positions.begin(), positions.end(), positions_.begin(),
                 positions_.end())) {
    return table.data();
  }
  const int64_t half = d / 2;
  std::vector<double> frequencies(half);
  for (int64_t i = 0; i < half; ++i) {
    frequencies[i] =
        std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(d));
  }
  f32_.clear();
  f64_.clear();
  table.resize(positions.size() * d);
  for (size_t t = 0; t < positions.size(); ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(positions[t]) * frequencies[i];
      table[t * d + i] = static_cast<S>(std::cos(angle));
      table[t * d + half + i] = static_cast<S>(std::sin(angle));
    }
  }
  base_ = base;
  d_ = d;
  positions_.assign(positions.begin(), positions.end());
  return table.data();
}

void CpuKernels::CheckGemm(OperandChecker& check, const GemmOptions&,
                           const ConstTensorView& a, const ConstTensorView& b,
                           const TensorView& c) const {
  check.HasSeparateRows("a", a, kLargestBlasSize)
      .HasSeparateRows("b", b, kLargestBlasSize)
      .HasSeparateRows("c", c, kLargestBlasSize);
}

void CpuKernels::CheckGemmFp8(OperandChecker& check, const ConstTensorView& a,
                              const ConstTensorView& b,
                              const TensorView& c) const {
  CheckGemm(check, {}, a, b, c);
}

void CpuKernels::CheckAttention(OperandChecker& check,
                                const AttentionBlock& block) const {
  const int64_t d = block.key.shape()[3];
  check.Requires(
      d <= kLargestBlasSize,
      absl::StrCat("\"key\" has heads of ", d,
                   " elements; there may be at most ", kLargestBlasSize, "."));
}

void CpuKernels::CheckAttentionGradient(
    OperandChecker& check, const AttentionBlock& block,
    const AttentionGradients& gradients) const {
  CheckAttention(check, block);
  RequireBlasTokens(check, "key_gradient", gradients.key_gradient);
  RequireBlasTokens(check, "value_gradient", gradients.value_gradient);
}

absl::Status CpuKernels::Gemm(const GemmOptions& options,
                              const ConstTensorView& a,
                              const ConstTensorView& b, const TensorView& c) {
  cpu::Gemm(options, a, b, c);
  return absl::OkStatus();
}

absl::Status CpuKernels::CastTranspose(const ConstTensorView& x,
                                       const ConstTensorView& scale,
                                       const TensorView& amax,
                                       const TensorView& y,
                                       const TensorView& transposed) {
  cpu::CastTranspose(x, scale, amax, y, transposed);
  return absl::OkStatus();
}

absl::Status CpuKernels::GemmFp8(const Fp8GemmOptions& options,
                                 const ConstTensorView& a,
                                 const ConstTensorView& a_inverse,
                                 const ConstTensorView& b,
                                 const ConstTensorView& b_inverse,
                                 const TensorView& c) {
  cpu::GemmFp8(options, a, a_inverse, b, b_inverse, c);
  return absl::OkStatus();
}

absl::Status CpuKernels::UpdateScales(int margin,
                                      const ConstTensorView& largest,
                                      const TensorView& amax,
                                      const TensorView& history,
                                      const TensorView& scale,
                                      const TensorView& inverse) {
  cpu::UpdateScales(margin, largest, amax, history, scale, inverse);
  return absl::OkStatus();
}

absl::Status CpuKernels::AddBias(const ConstTensorView& bias,
                                 const TensorView& x) {
  RunElementwise({.step = Step::kAddToRows,
                  .x_type = x.dtype(),
                  .y_type = x.dtype(),
                  .rows = x.shape()[0],
                  .n = x.shape()[1],
                  .x = ConstRowsView(bias),
                  .y = RowsView(x)});
  return absl::OkStatus();
}

absl::Status CpuKernels::SumRows(const ConstTensorView& gradient,
                                 const TensorView& bias_gradient) {
  RunElementwise({.step = Step::kSumRows,
                  .x_type = gradient.dtype(),
                  .y_type = bias_gradient.dtype(),
                  .rows = gradient.shape()[0],
                  .n = gradient.shape()[1],
                  .x = ConstRowsView(gradient),
                  .y = RowsView(bias_gradient)});
  return absl::OkStatus();
}

absl::Status CpuKernels::Copy(const ConstTensorView& x, const TensorView& y) {
  return tessera::Copy(x, y);
}

absl::Status CpuKernels::Add(const ConstTensorView& x, const TensorView& y) {
  return RunOnRows(
      {.step = Step::kAdd, .x_type = x.dtype(), .y_type = y.dtype()}, x, y);
}

absl::Status CpuKernels::Scale(double factor, const TensorView& x) {
  return RunOnRows({.step = Step::kScale,
                    .x_type = x.dtype(),
                    .y_type = x.dtype(),
                    .factor = factor},
                   x, x);
}

absl::Status CpuKernels::Fill(double value, const TensorView& x) {
  return tessera::Fill(x, value);
}

absl::Status CpuKernels::Cast(const ConstTensorView& x, const TensorView& y) {
  return RunOnRows(
      {.step = Step::kCast, .x_type = x.dtype(), .y_type = y.dtype()}, x, y);
}

absl::Status CpuKernels::Dropout(const DropoutMask& mask, const TensorView& x) {
  return ApplyDropout(mask, x);
}

absl::Status CpuKernels::RowDots(const ConstTensorView& output,
                                 const ConstTensorView& output_gradient,
                                 const TensorView& dots) {
  return DotRows(output, output_gradient, dots);
}

absl::Status CpuKernels::SwiGlu(const ConstTensorView& gate,
                                const ConstTensorView& up,
                                const TensorView& y) {
  RunSwiGlu({.dtype = gate.dtype(),
             .rows = gate.shape()[0],
             .n = gate.shape()[1],
             .gate = ConstRowsView(gate),
             .up = ConstRowsView(up),
             .y = RowsView(y)});
  return absl::OkStatus();
}

absl::Status CpuKernels::SwiGluGradient(const ConstTensorView& gradient,
                                        const ConstTensorView& gate,
                                        const ConstTensorView& up,
                                        const TensorView& gate_gradient,
                                        const TensorView& up_gradient) {
  RunSwiGlu({.backward = true,
             .dtype = gate.dtype(),
             .rows = gate.shape()[0],
             .n = gate.shape()[1],
             .gate = ConstRowsView(gate),
             .up = ConstRowsView(up),
             .gradient = ConstRowsView(gradient),
             .gate_gradient = RowsView(gate_gradient),
             .up_gradient = RowsView(up_gradient)});
  return absl::OkStatus();
}

absl::Status CpuKernels::RmsNorm(double epsilon, const ConstTensorView& x,
                                 const ConstTensorView& weight,
                                 const TensorView& y,
                                 const TensorView& inverse) {
  NormJob job = JobOn(NormJob::Step::kForward, x);
  job.epsilon = epsilon;
  job.weight = ConstRowsView(weight);
  job.inverse = RowsView(inverse);
  job.y = RowsView(y);
  RunNorm(job);
  return absl::OkStatus();
}

absl::Status CpuKernels::RmsNormInputGradient(const ConstTensorView& gradient,
                                              const ConstTensorView& x,
                                              const ConstTensorView& weight,
                                              const ConstTensorView& inverse,
                                              const TensorView& x_gradient) {
  NormJob job = JobOn(NormJob::Step::kInputGradient, x);
  job.gradient = ConstRowsView(gradient);
  job.weight = ConstRowsView(weight);
  job.inverse = StatisticsView(inverse);
  job.y = RowsView(x_gradient);
  RunNorm(job);
  return absl::OkStatus();
}

absl::Status CpuKernels::AddRmsNorm(double epsilon,
                                    const ConstTensorView& residual,
                                    const ConstTensorView& weight,
                                    const TensorView& x, const TensorView& y,
                                    const TensorView& inverse) {
  NormJob job = JobOn(NormJob::Step::kAddForward, x);
  job.epsilon = epsilon;
  job.residual = ConstRowsView(residual);
  job.sum = RowsView(x);
  job.weight = ConstRowsView(weight);
  job.inverse = RowsView(inverse);
  job.y = RowsView(y);
  RunNorm(job);
  return absl::OkStatus();
}

absl::Status CpuKernels::AddRmsNormInputGradient(
    const ConstTensorView& gradient, const ConstTensorView& x,
    const ConstTensorView& weight, const ConstTensorView& inverse,
    const ConstTensorView& residual_gradient, const TensorView& x_gradient) {
  NormJob job = JobOn(NormJob::Step::kAddInputGradient, x);
  job.gradient = ConstRowsView(gradient);
  job.weight = ConstRowsView(weight);
  job.residual = ConstRowsView(residual_gradient);
  job.inverse = StatisticsView(inverse);
  job.y = RowsView(x_gradient);
  RunNorm(job);
  return absl::OkStatus();
}

absl::Status CpuKernels::RmsNormWeightGradient(
    const ConstTensorView& gradient, const ConstTensorView& x,
    const ConstTensorView& inverse, const TensorView& weight_gradient) {
  NormJob job = JobOn(NormJob::Step::kWeightGradient, x);
  job.target_type = weight_gradient.dtype();
  job.gradient = ConstRowsView(gradient);
  job.inverse = StatisticsView(inverse);
  job.y = RowsView(weight_gradient);
  RunNorm(job);
  return absl::OkStatus();
}

absl::Status CpuKernels::Rotate(double base, bool inverse,
                                const ConstTensorView& positions,
                                const TensorView& x) {
  x.dtype() == DType::kF64
      ? RotateHeads<double>(rotary_, base, inverse, positions, x)
      : RotateHeads<float>(rotary_, base, inverse, positions, x);
  return absl::OkStatus();
}

absl::Status CpuKernels::GatherRows(const ConstTensorView& table,
                                    IndexRange held, const ConstTensorView& ids,
                                    const TensorView& y) {
  CopyHeldRows(table, held, ListOf<int64_t>(ids), y);
  return absl::OkStatus();
}

absl::Status CpuKernels::AddRows(const ConstTensorView& gradient,
                                 IndexRange held, const ConstTensorView& ids,
                                 const TensorView& table_gradient) {
  AddHeldRows(gradient, held, ListOf<int64_t>(ids), table_gradient);
  return absl::OkStatus();
}

absl::Status CpuKernels::RowMax(const ConstTensorView& logits,
                                const TensorView& largest) {
  CrossEntropyJob job = JobOn(CrossEntropyStep::kMax, logits);
  job.result = RowsView(largest);
  RunCrossEntropy(job);
  return absl::OkStatus();
}

absl::Status CpuKernels::SumExp(const ConstTensorView& logits,
                                const ConstTensorView& largest,
                                const TensorView& sum) {
  CrossEntropyJob job = JobOn(CrossEntropyStep::kSumExp, logits);
  job.largest = ConstRowsView(largest);
  job.result = RowsView(sum);
  RunCrossEntropy(job);
  return absl::OkStatus();
}

absl::Status CpuKernels::Pick(const ConstTensorView& logits, IndexRange held,
                              const ConstTensorView& targets,
                              const TensorView& picked) {
  CrossEntropyJob job = JobOn(CrossEntropyStep::kPick, logits);
  job.held = held;
  job.targets = ListOf<int64_t>(targets);
  job.result = RowsView(picked);
  RunCrossEntropy(job);
  return absl::OkStatus();
}

absl::Status CpuKernels::CrossEntropyLosses(const ConstTensorView& largest,
                                            const ConstTensorView& sum,
                                            const ConstTensorView& picked,
                                            const TensorView& losses) {
  largest.dtype() == DType::kF64
      ? SetLosses<double>(largest, sum, picked, losses)
      : SetLosses<float>(largest, sum, picked, losses);
  return absl::OkStatus();
}

absl::Status CpuKernels::CrossEntropyGradient(const ConstTensorView& largest,
                                              const ConstTensorView& sum,
                                              IndexRange held,
                                              const ConstTensorView& targets,
                                              const ConstTensorView& scales,
                                              const TensorView& logits) {
  CrossEntropyJob job = JobOn(CrossEntropyStep::kGradient, logits);
  job.held = held;
  job.largest = ConstRowsView(largest);
  job.sum = ConstRowsView(sum);
  job.targets = ListOf<int64_t>(targets);
  job.scales = ListOf<double>(scales);
  job.result = RowsView(logits);
  RunCrossEntropy(job);
  return absl::OkStatus();
}

absl::Status CpuKernels::Sum(double factor, const ConstTensorView& x,
                             const TensorView& total) {
  double sum = 0;
  for (const double value : ListOf<double>(x)) sum += value;
  *reinterpret_cast<double*>(total.data()) = factor * sum;
  return absl::OkStatus();
}

absl::Status CpuKernels::Attend(const AttentionBlock& block,
                                const AttentionState& state) {
  cpu::Attend(block, state);
  return absl::OkStatus();
}

absl::Status CpuKernels::AttendGradient(const AttentionBlock& block,
                                        const AttentionGradients& gradients) {
  cpu::AttendGradient(block, gradients);
  return absl::OkStatus();
}

}  // namespace tessera::tensor_parallel::cpu
