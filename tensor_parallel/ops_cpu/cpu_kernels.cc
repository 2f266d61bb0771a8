#include "tensor_parallel/ops_cpu/cpu_kernels.h"

#include <algorithm>
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
#include "base/device/operand_checker.h"
#include "base/dtype/dtype.h"
#include "base/os/thread_pool.h"
#include "base/status_macros.h"
#include "base/tensor/copy.h"
#include "base/tensor/layout.h"
#include "base/tensor/tensor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
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

// The number of elements in a unit of work of a thread: some microseconds.
constexpr int64_t kPart = 16384;

// Calls run(range) for parts of [0, count), in which each index has `width`
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

// Runs `job` on x and y of equal shapes with any number of dimensions: as one
// row if they are contiguous, otherwise by their last two dimensions.
void RunOnRows(ThreadPool& pool, ElementwiseJob job, const ConstTensorView& x,
               const TensorView& y) {
  if (x.element_count() == 0) return;
  if (x.rank() > 2 && !(x.IsContiguous() && y.IsContiguous())) {
    for (int64_t i = 0; i < x.shape()[0]; ++i) {
      RunOnRows(pool, job, *x.Select(0, i), *y.Select(0, i));
    }
    return;
  }
  const bool is_matrix =
      x.rank() == 2 && !(x.IsContiguous() && y.IsContiguous());
  if (is_matrix) {
    job.rows = {0, x.shape()[0]};
    job.n = x.shape()[1];
    job.x = ConstRowsView(x);
    job.y = RowsView(y);
    RunByRows(pool, RunElementwise, job, job.n);
    return;
  }
  RunParts(pool, x.element_count(), 1, [&](IndexRange range) {
    ElementwiseJob part = job;
    part.rows = {0, 1};
    part.n = range.size();
    part.x = ConstRowsView(x.data() + range.begin * SizeInBytes(x.dtype()), 0);
    part.y = RowsView(y.data() + range.begin * SizeInBytes(y.dtype()), 0);
    RunElementwise(part);
  });
}

// Only the forward writes statistics.
RowsView StatisticsView(const ConstTensorView& view) {
  return RowsView(const_cast<std::byte*>(view.data()), 0);
}

NormJob JobOn(NormJob::Step step, const ConstTensorView& x) {
  return {.step = step,
          .dtype = x.dtype(),
          .rows = {0, x.shape()[0]},
          .n = x.shape()[1],
          .width = x.shape()[1],
          .x = ConstRowsView(x)};
}

// The job of a norm, from the fields that all its operations have.
template <typename Call>
NormJob ForwardJob(NormJob::Step step, const Call& call) {
  NormJob job = JobOn(step, call.x);
  job.epsilon = call.epsilon;
  job.weight = ConstRowsView(call.weight);
  job.inverse = RowsView(call.inverse);
  job.y = RowsView(call.y);
  return job;
}

// The same for the gradient of its input.
template <typename Call>
NormJob GradientJob(NormJob::Step step, const Call& call) {
  NormJob job = JobOn(step, call.x);
  job.gradient = ConstRowsView(call.gradient);
  job.weight = ConstRowsView(call.weight);
  job.inverse = StatisticsView(call.inverse);
  return job;
}

// The indices of held ids, ordered by id and then by index.
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
    // Subtracts first, because large logits would absorb the logarithm.
    result[i] = std::log(static_cast<double>(s[i])) +
                (static_cast<double>(m[i]) - static_cast<double>(p[i]));
  }
}

// x and z are [tokens, heads, d], possibly with a leading dimension of
// sequences.
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

// Calls set(sink, log_sum_exp, other) for each row and head, of statistics S.
template <typename S, typename Sum, typename Set>
void ForEachSink(ThreadPool& pool, const ConstTensorView& sinks, int64_t rows,
                 Sum* sums, S* others, const Set& set) {
  const int64_t heads = sinks.shape()[0];
  std::vector<S> values(static_cast<size_t>(heads));
  RunElementwise(
      {.step = Step::kCast,
       .x_type = sinks.dtype(),
       .y_type = StatisticsOf(sinks.dtype()),
       .rows = {0, 1},
       .n = heads,
       .x = ConstRowsView(sinks),
       .y = RowsView(reinterpret_cast<std::byte*>(values.data()), 0)});
  RunParts(pool, rows, heads, [&](IndexRange part) {
    for (int64_t i = part.begin * heads; i < part.end * heads; ++i) {
      set(values[static_cast<size_t>(i % heads)], sums[i], others[i]);
    }
  });
}

template <typename S>
void AddSinksOf(ThreadPool& pool, const op::AddSinks& call) {
  ForEachSink<S>(
      pool, call.sinks, call.log_sum_exp.shape()[0],
      reinterpret_cast<S*>(call.log_sum_exp.data()),
      reinterpret_cast<S*>(call.factors.data()), [](S sink, S& sum, S& factor) {
        const S larger = std::max(sum, sink);
        const S before = sum;
        sum = larger + std::log1p(std::exp(std::min(sum, sink) - larger));
        factor = std::exp(before - sum);
      });
}

template <typename S>
void SetSinkShares(ThreadPool& pool, const op::SinkGradients& call) {
  ForEachSink<S>(
      pool, call.sinks, call.log_sum_exp.shape()[0],
      reinterpret_cast<const S*>(call.log_sum_exp.data()),
      reinterpret_cast<S*>(call.delta.data()),
      [](S sink, S sum, S& delta) { delta *= -std::exp(sink - sum); });
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

void RotateHeads(ThreadPool& pool, const op::Rotate& call) {
  const TensorView& x = call.x;
  const ConstTensorView& table = call.table;
  const int64_t positions = table.shape()[0], pairs = table.shape()[1] / 2;
  const int64_t row_bytes = 2 * pairs * SizeInBytes(table.dtype());
  const auto rotate = [&](int64_t i) {
    RunRotary(
        {.dtype = x.dtype(),
         .inverse = call.inverse,
         .heads = x.shape()[1],
         .pairs = pairs,
         .table = table.data() + i % positions * row_bytes,
         .x = RowsView(x.data() + i * x.strides()[0] * SizeInBytes(x.dtype()),
                       x.strides()[1])});
  };
  RunParts(pool, x.shape()[0], x.shape()[1] * 2 * pairs,
           [&](IndexRange tokens) {
             for (int64_t i = tokens.begin; i < tokens.end; ++i) rotate(i);
           });
}

// Requires sizes and strides that OpenBLAS supports.
void CheckProduct(const ConstTensorView& a, const ConstTensorView& b,
                  const ConstTensorView& c, OperandChecker& check) {
  check.HasSeparateRows("a", a, kLargestBlasSize)
      .HasSeparateRows("b", b, kLargestBlasSize)
      .HasSeparateRows("c", c, kLargestBlasSize);
}

void CheckHeads(const AttentionBlock& block, OperandChecker& check) {
  const int64_t d = block.key.shape()[3];
  check.Requires(
      d <= kLargestBlasSize,
      absl::StrCat("\"key\" has heads of ", d,
                   " elements; there may be at most ", kLargestBlasSize, "."));
}

// BLAS writes the gradients of keys and values.
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

absl::Status Run(CpuBackend& cpu, const op::Gemm& call) {
  TESSERA_RETURN_IF_ERROR(CheckBlas());
  Gemms(*cpu.pool, std::span(&call, 1));
  return absl::OkStatus();
}

absl::Status Run(CpuBackend& cpu, const op::GroupedGemm& call) {
  TESSERA_RETURN_IF_ERROR(CheckBlas());
  Gemms(*cpu.pool, call.Products());
  return absl::OkStatus();
}

void Run(CpuBackend&, const op::CastTranspose& call) {
  CastTranspose(call.x, call.scale, call.amax, call.y, call.transposed);
}

void Run(CpuBackend& cpu, const op::GemmFp8& call) {
  GemmFp8(*cpu.pool, call.options, call.a, call.a_inverse, call.b,
          call.b_inverse, call.c);
}

void Run(CpuBackend&, const op::UpdateScales& call) {
  UpdateScales(call.margin, call.largest, call.amax, call.history, call.scale,
               call.inverse);
}

void Run(CpuBackend& cpu, const op::AddBias& call) {
  const ElementwiseJob job = {.step = Step::kAddToRows,
                              .x_type = call.x.dtype(),
                              .y_type = call.x.dtype(),
                              .rows = {0, call.x.shape()[0]},
                              .n = call.x.shape()[1],
                              .x = ConstRowsView(call.bias),
                              .y = RowsView(call.x)};
  RunByRows(*cpu.pool, RunElementwise, job, job.n);
}

void Run(CpuBackend& cpu, const op::SumRows& call) {
  const ElementwiseJob job = {.step = Step::kSumRows,
                              .x_type = call.gradient.dtype(),
                              .y_type = call.bias_gradient.dtype(),
                              .rows = {0, call.gradient.shape()[0]},
                              .n = call.gradient.shape()[1],
                              .x = ConstRowsView(call.gradient),
                              .y = RowsView(call.bias_gradient)};
  RunByColumns(*cpu.pool, RunElementwise, job);
}

absl::Status Run(CpuBackend&, const op::Copy& call) {
  return tessera::Copy(call.x, call.y);
}

void Run(CpuBackend& cpu, const op::Add& call) {
  RunOnRows(
      *cpu.pool,
      {.step = Step::kAdd, .x_type = call.x.dtype(), .y_type = call.y.dtype()},
      call.x, call.y);
}

void Run(CpuBackend& cpu, const op::Scale& call) {
  RunOnRows(*cpu.pool,
            {.step = Step::kScale,
             .x_type = call.x.dtype(),
             .y_type = call.x.dtype(),
             .factor = call.factor},
            call.x, call.x);
}

void Run(CpuBackend& cpu, const op::SoftCap& call) {
  RunOnRows(*cpu.pool,
            {.step = Step::kSoftCap,
             .x_type = call.x.dtype(),
             .y_type = call.x.dtype(),
             .cap = call.cap},
            call.x, call.x);
}

absl::Status Run(CpuBackend&, const op::Fill& call) {
  return tessera::Fill(call.x, call.value);
}

void Run(CpuBackend& cpu, const op::Cast& call) {
  RunOnRows(
      *cpu.pool,
      {.step = Step::kCast, .x_type = call.x.dtype(), .y_type = call.y.dtype()},
      call.x, call.y);
}

absl::Status Run(CpuBackend&, const op::Dropout& call) {
  return ApplyDropout(call.mask, call.x);
}

void Run(CpuBackend& cpu, const op::RowDots& call) {
  DotRows(*cpu.pool, call.output, call.output_gradient, call.dots);
}

void Run(CpuBackend& cpu, const op::AddSinks& call) {
  call.sinks.dtype() == DType::kF64 ? AddSinksOf<double>(*cpu.pool, call)
                                    : AddSinksOf<float>(*cpu.pool, call);
}

void Run(CpuBackend& cpu, const op::SinkGradients& call) {
  call.sinks.dtype() == DType::kF64 ? SetSinkShares<double>(*cpu.pool, call)
                                    : SetSinkShares<float>(*cpu.pool, call);
}

void Run(CpuBackend& cpu, const op::Glu& call) {
  const GluJob job = {.kind = call.kind,
                      .dtype = call.gate.dtype(),
                      .rows = {0, call.gate.shape()[0]},
                      .n = call.gate.shape()[1],
                      .gate = ConstRowsView(call.gate),
                      .up = ConstRowsView(call.up),
                      .y = RowsView(call.y)};
  RunByRows(*cpu.pool, RunGlu, job, job.n);
}

void Run(CpuBackend& cpu, const op::GluGradient& call) {
  const GluJob job = {.kind = call.kind,
                      .backward = true,
                      .dtype = call.gate.dtype(),
                      .rows = {0, call.gate.shape()[0]},
                      .n = call.gate.shape()[1],
                      .gate = ConstRowsView(call.gate),
                      .up = ConstRowsView(call.up),
                      .gradient = ConstRowsView(call.gradient),
                      .gate_gradient = RowsView(call.gate_gradient),
                      .up_gradient = RowsView(call.up_gradient)};
  RunByRows(*cpu.pool, RunGlu, job, job.n);
}

void Run(CpuBackend& cpu, const op::RmsNorm& call) {
  const NormJob job = ForwardJob(NormJob::Step::kForward, call);
  RunByRows(*cpu.pool, RunNorm, job, job.n);
}

void Run(CpuBackend& cpu, const op::RmsNormInputGradient& call) {
  NormJob job = GradientJob(NormJob::Step::kInputGradient, call);
  job.y = RowsView(call.x_gradient);
  RunByRows(*cpu.pool, RunNorm, job, job.n);
}

void Run(CpuBackend& cpu, const op::AddRmsNorm& call) {
  NormJob job = ForwardJob(NormJob::Step::kAddForward, call);
  job.residual = ConstRowsView(call.residual);
  job.sum = RowsView(call.x);
  RunByRows(*cpu.pool, RunNorm, job, job.n);
}

void Run(CpuBackend& cpu, const op::AddRmsNormInputGradient& call) {
  NormJob job = GradientJob(NormJob::Step::kAddInputGradient, call);
  job.residual = ConstRowsView(call.residual_gradient);
  job.y = RowsView(call.x_gradient);
  RunByRows(*cpu.pool, RunNorm, job, job.n);
}

void Run(CpuBackend& cpu, const op::RmsNormWeightGradient& call) {
  NormJob job = JobOn(NormJob::Step::kWeightGradient, call.x);
  job.target_type = call.weight_gradient.dtype();
  job.gradient = ConstRowsView(call.gradient);
  job.inverse = StatisticsView(call.inverse);
  job.y = RowsView(call.weight_gradient);
  RunByColumns(*cpu.pool, RunNorm, job);
}

// The columns come first, because the result may overwrite the gradient.
void Run(CpuBackend& cpu, const op::AddRmsNormGradients& call) {
  Run(cpu, op::RmsNormWeightGradient{call.gradient, call.x, call.inverse,
                                     call.weight_gradient});
  Run(cpu, op::AddRmsNormInputGradient{call.gradient, call.x, call.weight,
                                       call.inverse, call.residual_gradient,
                                       call.x_gradient});
}

void Run(CpuBackend& cpu, const op::RmsNormSums& call) {
  NormJob job = JobOn(NormJob::Step::kSums, call.x);
  job.sums = RowsView(call.sums);
  RunByRows(*cpu.pool, RunNorm, job, job.n);
}

void Run(CpuBackend& cpu, const op::RmsNormOfSums& call) {
  NormJob job = ForwardJob(NormJob::Step::kForwardOf, call);
  job.width = call.width;
  job.sums = StatisticsView(call.sums);
  RunByRows(*cpu.pool, RunNorm, job, job.n);
}

void Run(CpuBackend& cpu, const op::RmsNormGradientSums& call) {
  NormJob job = GradientJob(NormJob::Step::kGradientSums, call);
  job.sums = RowsView(call.sums);
  RunByRows(*cpu.pool, RunNorm, job, job.n);
}

void Run(CpuBackend& cpu, const op::RmsNormInputGradientOfSums& call) {
  NormJob job = GradientJob(NormJob::Step::kInputGradientOf, call);
  job.width = call.width;
  job.sums = StatisticsView(call.sums);
  job.y = RowsView(call.x_gradient);
  RunByRows(*cpu.pool, RunNorm, job, job.n);
}

void Run(CpuBackend& cpu, const op::Rotate& call) {
  RotateHeads(*cpu.pool, call);
}

void Run(CpuBackend& cpu, const op::GatherRows& call) {
  CopyHeldRows(*cpu.pool, call.table, call.held, ListOf<int64_t>(call.ids),
               call.y);
}

void Run(CpuBackend& cpu, const op::AddRows& call) {
  AddHeldRows(*cpu.pool, call.gradient, call.held, ListOf<int64_t>(call.ids),
              call.table_gradient);
}

void Run(CpuBackend& cpu, const op::RowMax& call) {
  CrossEntropyJob job = JobOn(CrossEntropyStep::kMax, call.logits);
  job.result = RowsView(call.largest);
  RunByRows(*cpu.pool, RunCrossEntropy, job, call.logits.shape()[1]);
}

void Run(CpuBackend& cpu, const op::SumExp& call) {
  CrossEntropyJob job = JobOn(CrossEntropyStep::kSumExp, call.logits);
  job.largest = ConstRowsView(call.largest);
  job.result = RowsView(call.sum);
  RunByRows(*cpu.pool, RunCrossEntropy, job, call.logits.shape()[1]);
}

void Run(CpuBackend& cpu, const op::MaxAndSumExp& call) {
  Run(cpu, op::RowMax{call.logits, call.largest});
  Run(cpu, op::SumExp{call.logits, call.largest, call.sum});
}

void Run(CpuBackend&, const op::Pick& call) {
  CrossEntropyJob job = JobOn(CrossEntropyStep::kPick, call.logits);
  job.held = call.held;
  job.targets = ListOf<int64_t>(call.targets);
  job.result = RowsView(call.picked);
  RunCrossEntropy(job);
}

void Run(CpuBackend&, const op::CrossEntropyLosses& call) {
  call.largest.dtype() == DType::kF64
      ? SetLosses<double>(call.largest, call.sum, call.picked, call.targets,
                          call.losses)
      : SetLosses<float>(call.largest, call.sum, call.picked, call.targets,
                         call.losses);
}

void Run(CpuBackend& cpu, const op::CrossEntropyGradient& call) {
  CrossEntropyJob job = JobOn(CrossEntropyStep::kGradient, call.logits);
  job.held = call.held;
  job.largest = ConstRowsView(call.largest);
  job.sum = ConstRowsView(call.sum);
  job.targets = ListOf<int64_t>(call.targets);
  job.scales = ListOf<double>(call.scales);
  job.label_smoothing = call.terms.label_smoothing;
  job.z_loss = call.terms.z_loss;
  job.vocabulary = call.terms.vocabulary;
  job.cap = call.cap;
  job.result = RowsView(call.logits);
  RunByRows(*cpu.pool, RunCrossEntropy, job, call.logits.shape()[1]);
}

void Run(CpuBackend& cpu, const op::Route& call) {
  RunParts(*cpu.pool, call.logits.shape()[0], call.logits.shape()[1],
           [&](IndexRange tokens) { RouteTokens(call, tokens); });
}

absl::Status Run(CpuBackend&, const op::GroupByExpert& call) {
  return GroupRowsByExpert(call);
}

void Run(CpuBackend& cpu, const op::RouteGradient& call) {
  RunParts(*cpu.pool, call.logits.shape()[0], call.logits.shape()[1],
           [&](IndexRange tokens) { RouteTokensGradient(call, tokens); });
}

void Run(CpuBackend& cpu, const op::ScaleRows& call) {
  RunByRows(*cpu.pool, RunElementwise,
            ElementwiseJob{.step = Step::kScaleRows,
                           .x_type = call.x.dtype(),
                           .y_type = call.y.dtype(),
                           .rows = {0, call.x.shape()[0]},
                           .n = call.x.shape()[1],
                           .x = ConstRowsView(call.x),
                           .z = ConstRowsView(call.scales.data(), 0),
                           .y = RowsView(call.y)},
            call.x.shape()[1]);
}

void Run(CpuBackend& cpu, const op::ScaleRowsGradient& call) {
  const int64_t n = call.gradient.shape()[1];
  RunByRows(*cpu.pool, RunElementwise,
            ElementwiseJob{.step = Step::kDots,
                           .x_type = call.gradient.dtype(),
                           .y_type = call.x.dtype(),
                           .rows = {0, call.gradient.shape()[0]},
                           .n = n,
                           .x = ConstRowsView(call.gradient),
                           .z = ConstRowsView(call.x),
                           .y = RowsView(call.scales_gradient.data(), 0)},
            n);
  Run(cpu, op::ScaleRows{call.scales, call.gradient, call.x_gradient});
}

void Run(CpuBackend&, const op::Sum& call) {
  double sum = 0;
  for (const double value : ListOf<double>(call.x)) sum += value;
  *reinterpret_cast<double*>(call.total.data()) = call.factor * sum;
}

void Run(CpuBackend& cpu, const op::Attend& call) {
  Attend(*cpu.pool, call.block, call.state);
}

absl::Status Run(CpuBackend& cpu, const op::AttendGradient& call) {
  if (!call.block.is_whole) {
    AttendGradient(*cpu.pool, call.block, call.gradients);
    return absl::OkStatus();
  }
  const Dims& shape = call.block.query.shape();
  if (call.block.query.element_count() == 0) {
    TESSERA_RETURN_IF_ERROR(tessera::Fill(call.gradients.key_gradient, 0));
    return tessera::Fill(call.gradients.value_gradient, 0);
  }
  TESSERA_ASSIGN_OR_RETURN(
      Tensor delta, Tensor::Create(StatisticsOf(call.block.query.dtype()),
                                   {{shape[0], shape[1], shape[2]}}));
  DotRows(*cpu.pool, call.gradients.output, call.gradients.output_gradient,
          delta.view());
  AttentionGradients gradients = call.gradients;
  gradients.delta = delta.view();
  AttendGradient(*cpu.pool, call.block, gradients);
  return absl::OkStatus();
}

void Run(CpuBackend& cpu, const op::MaxScores& call) {
  RaiseMaxScores(*cpu.pool, call.block, call.max_scores);
}

CpuKernelTable MakeKernels() {
  CpuKernelTable table;
  LayerOperations::ForEach([&]<typename Op>(std::type_identity<Op>) {
    table.Add<Op>([](CpuBackend& cpu, const Op& call) -> absl::Status {
      if constexpr (std::is_void_v<decltype(Run(cpu, call))>) {
        Run(cpu, call);
        return absl::OkStatus();
      } else {
        return Run(cpu, call);
      }
    });
  });
  table.AddCheck<op::Gemm, op::GroupedGemm, op::GemmFp8>(
      [](const CpuBackend&, const auto& call, OperandChecker& check) {
        CheckProduct(call.a, call.b, call.c, check);
      });
  table.AddCheck<op::Attend, op::MaxScores>(
      [](const CpuBackend&, const auto& call, OperandChecker& check) {
        CheckHeads(call.block, check);
      });
  table.AddCheck<op::AttendGradient>([](const CpuBackend&,
                                        const op::AttendGradient& call,
                                        OperandChecker& check) {
    CheckHeads(call.block, check);
    if (call.block.is_whole) return;
    RequireBlasTokens(check, "key_gradient", call.gradients.key_gradient);
    RequireBlasTokens(check, "value_gradient", call.gradients.value_gradient);
  });
  return table;
}

}  // namespace

const CpuKernelTable& Kernels() {
  static const CpuKernelTable table = MakeKernels();
  return table;
}

}  // namespace tessera::tensor_parallel::cpu
