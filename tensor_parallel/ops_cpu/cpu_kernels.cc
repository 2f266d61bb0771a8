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

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/os/thread_pool.h"
#include "base/status_macros.h"
#include "base/tensor/copy.h"
#include "base/tensor/layout.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/operand_checker.h"
#include "tensor_parallel/ops_cpu/attention.h"
#include "tensor_parallel/ops_cpu/fp8.h"
#include "tensor_parallel/ops_cpu/gemm.h"
#include "tensor_parallel/ops_cpu/kernels.h"
#include "tensor_parallel/ops_cpu/router.h"
#include "tensor_parallel/random/dropout.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::cpu {

namespace {

using Step = ElementwiseJob::Step;

// Elements that a thread takes at a time: some microseconds of work.
constexpr int64_t kPart = 16384;

// Calls run(range) for parts of [0, count), of which each index has `width`
// elements.
void RunParts(ThreadPool& pool, int64_t count, int64_t width,
              absl::FunctionRef<void(IndexRange)> run) {
  const int64_t size =
      std::max<int64_t>(kPart / std::max<int64_t>(width, 1), 1);
  pool.Run((count + size - 1) / size, [&](int64_t i) {
    run({i * size, std::min(count, (i + 1) * size)});
  });
}

template <typename Job>
void RunByRows(ThreadPool& pool, void (*run)(const Job&), const Job& job,
               int64_t n) {
  RunParts(pool, job.rows.end, n, [&](IndexRange rows) {
    Job part = job;
    part.rows = rows;
    run(part);
  });
}

// Sums of rows: the order of a column's sum does not depend on the parts.
template <typename Job>
void RunByColumns(ThreadPool& pool, void (*run)(const Job&), const Job& job) {
  constexpr int64_t kColumns = 64;  // 128 bytes of bf16, 512 of f64.
  RunParts(pool, (job.n + kColumns - 1) / kColumns, kColumns * job.rows.end,
           [&](IndexRange lines) {
             Job part = job;
             part.columns = {lines.begin * kColumns,
                             std::min(job.n, lines.end * kColumns)};
             run(part);
           });
}

// Runs `job` on x and y of one shape and any number of dimensions: as one row
// if they are contiguous, else by their last two dimensions.
absl::Status RunOnRows(ThreadPool& pool, ElementwiseJob job,
                       const ConstTensorView& x, const TensorView& y) {
  if (x.element_count() == 0) return absl::OkStatus();
  if (x.rank() > 2 && !(x.IsContiguous() && y.IsContiguous())) {
    for (int64_t i = 0; i < x.shape()[0]; ++i) {
      TESSERA_ASSIGN_OR_RETURN(ConstTensorView x_part, x.Select(0, i));
      TESSERA_ASSIGN_OR_RETURN(TensorView y_part, y.Select(0, i));
      TESSERA_RETURN_IF_ERROR(RunOnRows(pool, job, x_part, y_part));
    }
    return absl::OkStatus();
  }
  const bool is_matrix =
      x.rank() == 2 && !(x.IsContiguous() && y.IsContiguous());
  if (is_matrix) {
    job.rows = {0, x.shape()[0]};
    job.n = x.shape()[1];
    job.x = ConstRowsView(x);
    job.y = RowsView(y);
    RunByRows(pool, RunElementwise, job, job.n);
    return absl::OkStatus();
  }
  RunParts(pool, x.element_count(), 1, [&](IndexRange range) {
    ElementwiseJob part = job;
    part.rows = {0, 1};
    part.n = range.size();
    part.x = ConstRowsView(x.data() + range.begin * SizeInBytes(x.dtype()), 0);
    part.y = RowsView(y.data() + range.begin * SizeInBytes(y.dtype()), 0);
    RunElementwise(part);
  });
  return absl::OkStatus();
}

// Statistics are written by the forward alone.
RowsView StatisticsView(const ConstTensorView& view) {
  return RowsView(const_cast<std::byte*>(view.data()), 0);
}

NormJob JobOn(NormJob::Step step, const ConstTensorView& x) {
  return {.step = step,
          .dtype = x.dtype(),
          .rows = {0, x.shape()[0]},
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
          .rows = {0, logits.shape()[0]},
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
               const ConstTensorView& picked, const ConstTensorView& targets,
               const TensorView& losses) {
  const auto m = ListOf<T>(largest), s = ListOf<T>(sum), p = ListOf<T>(picked);
  const auto target = ListOf<int64_t>(targets);
  auto* const result = reinterpret_cast<double*>(losses.data());
  for (size_t i = 0; i < m.size(); ++i) {
    if (target[i] < 0) {
      result[i] = 0;
      continue;
    }
    // The difference first: large logits would swallow the logarithm.
    result[i] = std::log(static_cast<double>(s[i])) +
                (static_cast<double>(m[i]) - static_cast<double>(p[i]));
  }
}

// x and z are [tokens, heads, d], or that for each sequence.
void DotRows(ThreadPool& pool, const ConstTensorView& x,
             const ConstTensorView& z, const TensorView& dots) {
  if (x.rank() == 4) {
    for (int64_t i = 0; i < x.shape()[0]; ++i) {
      DotRows(pool, *x.Select(0, i), *z.Select(0, i), *dots.Select(0, i));
    }
    return;
  }
  const int64_t heads = x.shape()[1], d = x.shape()[2];
  const auto at = [](const auto& view, int64_t token) {
    return view.data() + token * view.strides()[0] * SizeInBytes(view.dtype());
  };
  RunParts(pool, x.shape()[0], heads * d, [&](IndexRange tokens) {
    for (int64_t i = tokens.begin; i < tokens.end; ++i) {
      RunElementwise({.step = Step::kDots,
                      .x_type = x.dtype(),
                      .y_type = z.dtype(),
                      .rows = {0, heads},
                      .n = d,
                      .x = ConstRowsView(at(x, i), x.strides()[1]),
                      .z = ConstRowsView(at(z, i), z.strides()[1]),
                      .y = RowsView(at(dots, i), 0)});
    }
  });
}

// Copies rows of the table that are held, and zeros for others.
void CopyHeldRows(ThreadPool& pool, const ConstTensorView& table,
                  IndexRange held, std::span<const int64_t> ids,
                  const TensorView& y) {
  const int64_t size = SizeInBytes(table.dtype());
  const auto bytes = static_cast<size_t>(table.shape()[1] * size);
  if (bytes == 0) return;
  const auto copy = [&](int64_t i) {
    const int64_t id = ids[static_cast<size_t>(i)];
    std::byte* const to = y.data() + i * y.strides()[0] * size;
    if (held.contains(id)) {
      const int64_t row = id - held.begin;
      std::memcpy(to, table.data() + row * table.strides()[0] * size, bytes);
    } else {
      std::memset(to, 0, bytes);
    }
  };
  RunParts(pool, static_cast<int64_t>(ids.size()), table.shape()[1],
           [&](IndexRange rows) {
             for (int64_t i = rows.begin; i < rows.end; ++i) copy(i);
           });
}

void AddHeldRows(ThreadPool& pool, const ConstTensorView& gradient,
                 IndexRange held, std::span<const int64_t> ids,
                 const TensorView& table_gradient) {
  const std::vector<int64_t> order = HeldInOrder(held, ids);
  std::vector<std::span<const int64_t>> groups;  // Rows with equal ids.
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    const int64_t id = ids[order[begin]];
    while (end < order.size() && ids[order[end]] == id) ++end;
    groups.push_back(std::span(order).subspan(begin, end - begin));
  }
  const auto add = [&](std::span<const int64_t> group) {
    const int64_t id = ids[group.front()];
    const int64_t offset = (id - held.begin) * table_gradient.strides()[0];
    RunAddRows(
        {.dtype = gradient.dtype(),
         .target_type = table_gradient.dtype(),
         .n = gradient.shape()[1],
         .gradient = ConstRowsView(gradient),
         .rows = group,
         .target = RowsView(table_gradient.data() +
                                offset * SizeInBytes(table_gradient.dtype()),
                            0)});
  };
  RunParts(pool, static_cast<int64_t>(groups.size()), gradient.shape()[1],
           [&](IndexRange range) {
             for (int64_t i = range.begin; i < range.end; ++i) add(groups[i]);
           });
}

template <typename S>
void RotateHeads(ThreadPool& pool, RotaryTable& table,
                 const RotaryFrequencies& frequencies, bool inverse,
                 const ConstTensorView& positions, const TensorView& x) {
  const int64_t d = x.shape()[2];
  const S* const angles =
      table.Get<S>(frequencies, d, ListOf<int64_t>(positions));
  const auto rotate = [&](int64_t i) {
    RunRotary(
        {.dtype = x.dtype(),
         .inverse = inverse,
         .heads = x.shape()[1],
         .d = d,
         .table = angles + i * d,
         .x = RowsView(x.data() + i * x.strides()[0] * SizeInBytes(x.dtype()),
                       x.strides()[1])});
  };
  RunParts(pool, x.shape()[0], x.shape()[1] * d, [&](IndexRange tokens) {
    for (int64_t i = tokens.begin; i < tokens.end; ++i) rotate(i);
  });
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
const S* RotaryTable::Get(const RotaryFrequencies& frequencies, int64_t d,
                          std::span<const int64_t> positions) {
  std::vector<S>& table = [this]() -> std::vector<S>& {
    if constexpr (std::is_same_v<S, float>) {
      return f32_;
    } else {
      return f64_;
    }
  }();
  if (frequencies == frequencies_ && d == d_ &&
      table.size() == positions.size() * d &&
      std::equal(positions.begin(), positions.end(), positions_.begin(),
                 positions_.end())) {
    return table.data();
  }
  const int64_t half = d / 2;
  std::vector<double> radians(half);
  for (int64_t i = 0; i < half; ++i) radians[i] = frequencies.Of(i, d);
  f32_.clear();
  f64_.clear();
  table.resize(positions.size() * d);
  for (size_t t = 0; t < positions.size(); ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(positions[t]) * radians[i];
      table[t * d + i] = static_cast<S>(std::cos(angle));
      table[t * d + half + i] = static_cast<S>(std::sin(angle));
    }
  }
  frequencies_ = frequencies;
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
  cpu::Gemm(*pool_, options, a, b, c);
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
  cpu::GemmFp8(*pool_, options, a, a_inverse, b, b_inverse, c);
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
  const ElementwiseJob job = {.step = Step::kAddToRows,
                              .x_type = x.dtype(),
                              .y_type = x.dtype(),
                              .rows = {0, x.shape()[0]},
                              .n = x.shape()[1],
                              .x = ConstRowsView(bias),
                              .y = RowsView(x)};
  RunByRows(*pool_, RunElementwise, job, job.n);
  return absl::OkStatus();
}

absl::Status CpuKernels::SumRows(const ConstTensorView& gradient,
                                 const TensorView& bias_gradient) {
  const ElementwiseJob job = {.step = Step::kSumRows,
                              .x_type = gradient.dtype(),
                              .y_type = bias_gradient.dtype(),
                              .rows = {0, gradient.shape()[0]},
                              .n = gradient.shape()[1],
                              .x = ConstRowsView(gradient),
                              .y = RowsView(bias_gradient)};
  RunByColumns(*pool_, RunElementwise, job);
  return absl::OkStatus();
}

absl::Status CpuKernels::Copy(const ConstTensorView& x, const TensorView& y) {
  return tessera::Copy(x, y);
}

absl::Status CpuKernels::Add(const ConstTensorView& x, const TensorView& y) {
  return RunOnRows(
      *pool_, {.step = Step::kAdd, .x_type = x.dtype(), .y_type = y.dtype()}, x,
      y);
}

absl::Status CpuKernels::Scale(double factor, const TensorView& x) {
  return RunOnRows(*pool_,
                   {.step = Step::kScale,
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
      *pool_, {.step = Step::kCast, .x_type = x.dtype(), .y_type = y.dtype()},
      x, y);
}

absl::Status CpuKernels::Dropout(const DropoutMask& mask, const TensorView& x) {
  return ApplyDropout(mask, x);
}

absl::Status CpuKernels::RowDots(const ConstTensorView& output,
                                 const ConstTensorView& output_gradient,
                                 const TensorView& dots) {
  DotRows(*pool_, output, output_gradient, dots);
  return absl::OkStatus();
}

absl::Status CpuKernels::Glu(GluKind kind, const ConstTensorView& gate,
                             const ConstTensorView& up, const TensorView& y) {
  const GluJob job = {.kind = kind,
                      .dtype = gate.dtype(),
                      .rows = {0, gate.shape()[0]},
                      .n = gate.shape()[1],
                      .gate = ConstRowsView(gate),
                      .up = ConstRowsView(up),
                      .y = RowsView(y)};
  RunByRows(*pool_, RunGlu, job, job.n);
  return absl::OkStatus();
}

absl::Status CpuKernels::GluGradient(GluKind kind,
                                     const ConstTensorView& gradient,
                                     const ConstTensorView& gate,
                                     const ConstTensorView& up,
                                     const TensorView& gate_gradient,
                                     const TensorView& up_gradient) {
  const GluJob job = {.kind = kind,
                      .backward = true,
                      .dtype = gate.dtype(),
                      .rows = {0, gate.shape()[0]},
                      .n = gate.shape()[1],
                      .gate = ConstRowsView(gate),
                      .up = ConstRowsView(up),
                      .gradient = ConstRowsView(gradient),
                      .gate_gradient = RowsView(gate_gradient),
                      .up_gradient = RowsView(up_gradient)};
  RunByRows(*pool_, RunGlu, job, job.n);
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
  RunByRows(*pool_, RunNorm, job, job.n);
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
  RunByRows(*pool_, RunNorm, job, job.n);
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
  RunByRows(*pool_, RunNorm, job, job.n);
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
  RunByRows(*pool_, RunNorm, job, job.n);
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
  RunByColumns(*pool_, RunNorm, job);
  return absl::OkStatus();
}

absl::Status CpuKernels::Rotate(const RotaryFrequencies& frequencies,
                                bool inverse, const ConstTensorView& positions,
                                const TensorView& x) {
  x.dtype() == DType::kF64
      ? RotateHeads<double>(*pool_, rotary_, frequencies, inverse, positions, x)
      : RotateHeads<float>(*pool_, rotary_, frequencies, inverse, positions, x);
  return absl::OkStatus();
}

absl::Status CpuKernels::GatherRows(const ConstTensorView& table,
                                    IndexRange held, const ConstTensorView& ids,
                                    const TensorView& y) {
  CopyHeldRows(*pool_, table, held, ListOf<int64_t>(ids), y);
  return absl::OkStatus();
}

absl::Status CpuKernels::AddRows(const ConstTensorView& gradient,
                                 IndexRange held, const ConstTensorView& ids,
                                 const TensorView& table_gradient) {
  AddHeldRows(*pool_, gradient, held, ListOf<int64_t>(ids), table_gradient);
  return absl::OkStatus();
}

absl::Status CpuKernels::RowMax(const ConstTensorView& logits,
                                const TensorView& largest) {
  CrossEntropyJob job = JobOn(CrossEntropyStep::kMax, logits);
  job.result = RowsView(largest);
  RunByRows(*pool_, RunCrossEntropy, job, logits.shape()[1]);
  return absl::OkStatus();
}

absl::Status CpuKernels::SumExp(const ConstTensorView& logits,
                                const ConstTensorView& largest,
                                const TensorView& sum) {
  CrossEntropyJob job = JobOn(CrossEntropyStep::kSumExp, logits);
  job.largest = ConstRowsView(largest);
  job.result = RowsView(sum);
  RunByRows(*pool_, RunCrossEntropy, job, logits.shape()[1]);
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
                                            const ConstTensorView& targets,
                                            const TensorView& losses) {
  largest.dtype() == DType::kF64
      ? SetLosses<double>(largest, sum, picked, targets, losses)
      : SetLosses<float>(largest, sum, picked, targets, losses);
  return absl::OkStatus();
}

absl::Status CpuKernels::CrossEntropyGradient(
    const ConstTensorView& largest, const ConstTensorView& sum, IndexRange held,
    const ConstTensorView& targets, const ConstTensorView& scales,
    const LossTerms& terms, const TensorView& logits) {
  CrossEntropyJob job = JobOn(CrossEntropyStep::kGradient, logits);
  job.held = held;
  job.largest = ConstRowsView(largest);
  job.sum = ConstRowsView(sum);
  job.targets = ListOf<int64_t>(targets);
  job.scales = ListOf<double>(scales);
  job.label_smoothing = terms.label_smoothing;
  job.z_loss = terms.z_loss;
  job.vocabulary = terms.vocabulary;
  job.result = RowsView(logits);
  RunByRows(*pool_, RunCrossEntropy, job, logits.shape()[1]);
  return absl::OkStatus();
}

absl::Status CpuKernels::Route(const RouterOptions& options,
                               const ConstTensorView& logits,
                               const ConstTensorView& bias,
                               const TensorView& weights,
                               const TensorView& experts) {
  RunParts(*pool_, logits.shape()[0], logits.shape()[1],
           [&](IndexRange tokens) {
             RouteTokens(options, tokens, logits, bias, weights, experts);
           });
  return absl::OkStatus();
}

absl::Status CpuKernels::RouteGradient(const RouterOptions& options,
                                       const ConstTensorView& logits,
                                       const ConstTensorView& experts,
                                       const ConstTensorView& weights_gradient,
                                       const ConstTensorView& balance,
                                       double z_loss,
                                       const TensorView& logits_gradient) {
  RunParts(
      *pool_, logits.shape()[0], logits.shape()[1], [&](IndexRange tokens) {
        RouteTokensGradient(options, tokens, logits, experts, weights_gradient,
                            balance, z_loss, logits_gradient);
      });
  return absl::OkStatus();
}

absl::Status CpuKernels::ScaleRows(const ConstTensorView& scales,
                                   const ConstTensorView& x,
                                   const TensorView& y) {
  RunByRows(*pool_, RunElementwise,
            ElementwiseJob{.step = Step::kScaleRows,
                           .x_type = x.dtype(),
                           .y_type = y.dtype(),
                           .rows = {0, x.shape()[0]},
                           .n = x.shape()[1],
                           .x = ConstRowsView(x),
                           .z = ConstRowsView(scales.data(), 0),
                           .y = RowsView(y)},
            x.shape()[1]);
  return absl::OkStatus();
}

absl::Status CpuKernels::ScaleRowsGradient(const ConstTensorView& gradient,
                                           const ConstTensorView& scales,
                                           const ConstTensorView& x,
                                           const TensorView& x_gradient,
                                           const TensorView& scales_gradient) {
  const int64_t n = gradient.shape()[1];
  RunByRows(*pool_, RunElementwise,
            ElementwiseJob{.step = Step::kDots,
                           .x_type = gradient.dtype(),
                           .y_type = x.dtype(),
                           .rows = {0, gradient.shape()[0]},
                           .n = n,
                           .x = ConstRowsView(gradient),
                           .z = ConstRowsView(x),
                           .y = RowsView(scales_gradient.data(), 0)},
            n);
  return ScaleRows(scales, gradient, x_gradient);
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
  cpu::Attend(*pool_, block, state);
  return absl::OkStatus();
}

absl::Status CpuKernels::AttendGradient(const AttentionBlock& block,
                                        const AttentionGradients& gradients) {
  cpu::AttendGradient(*pool_, block, gradients);
  return absl::OkStatus();
}

}  // namespace tessera::tensor_parallel::cpu
