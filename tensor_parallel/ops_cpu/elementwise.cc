#include "tensor_parallel/ops_cpu/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/copy.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops_cpu/kernels.h"
#include "tensor_parallel/ops_cpu/operand_checker.h"
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

absl::Status CheckGradient(OperandChecker& check,
                           const ConstTensorView& gradient,
                           const ConstTensorView& x,
                           const ConstTensorView& inverse) {
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 2));
  return check.Reads("gradient", gradient, x.shape())
      .ReadsStatistics("inverse", inverse, {{x.shape()[0]}})
      .status();
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

// By token, from the statistics of all ranks.
template <typename T>
absl::Status SetLosses(const ConstTensorView& largest,
                       const ConstTensorView& sum,
                       const ConstTensorView& picked,
                       std::span<double> losses) {
  TESSERA_ASSIGN_OR_RETURN(const auto m, largest.AsSpan<T>());
  TESSERA_ASSIGN_OR_RETURN(const auto s, sum.AsSpan<T>());
  TESSERA_ASSIGN_OR_RETURN(const auto p, picked.AsSpan<T>());
  for (size_t i = 0; i < losses.size(); ++i) {
    // The difference first: large logits would swallow the logarithm.
    losses[i] = std::log(static_cast<double>(s[i])) +
                (static_cast<double>(m[i]) - static_cast<double>(p[i]));
  }
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

absl::Status SwiGlu(const ConstTensorView& gate, const ConstTensorView& up,
                    const TensorView& y) {
  OperandChecker check("SwiGlu");
  TESSERA_RETURN_IF_ERROR(check.Leads("gate", gate, 2));
  check.Reads("up", up, gate.shape()).Writes("y", y, gate.shape());
  TESSERA_RETURN_IF_ERROR(check.status());
  RunSwiGlu({.dtype = gate.dtype(),
             .rows = gate.shape()[0],
             .n = gate.shape()[1],
             .gate = ConstRowsView(gate),
             .up = ConstRowsView(up),
             .y = RowsView(y)});
  return absl::OkStatus();
}

absl::Status SwiGluGradient(const ConstTensorView& gradient,
                            const ConstTensorView& gate,
                            const ConstTensorView& up,
                            const TensorView& gate_gradient,
                            const TensorView& up_gradient) {
  OperandChecker check("SwiGluGradient");
  TESSERA_RETURN_IF_ERROR(check.Leads("gate", gate, 2));
  check.Reads("gradient", gradient, gate.shape())
      .Reads("up", up, gate.shape())
      .Writes("gate_gradient", gate_gradient, gate.shape())
      .Writes("up_gradient", up_gradient, gate.shape());
  TESSERA_RETURN_IF_ERROR(check.status());
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

absl::Status RmsNorm(double epsilon, const ConstTensorView& x,
                     const ConstTensorView& weight, const TensorView& y,
                     const TensorView& inverse) {
  OperandChecker check("RmsNorm");
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 2));
  check.Reads("weight", weight, {{x.shape()[1]}})
      .Writes("y", y, x.shape())
      .WritesStatistics("inverse", inverse, {{x.shape()[0]}})
      .Requires(epsilon >= 0, absl::StrCat("epsilon is ", epsilon,
                                           "; it should be at least 0."));
  TESSERA_RETURN_IF_ERROR(check.status());
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
  TESSERA_RETURN_IF_ERROR(CheckGradient(check, gradient, x, inverse));
  check.Reads("weight", weight, {{x.shape()[1]}})
      .Writes("x_gradient", x_gradient, x.shape());
  TESSERA_RETURN_IF_ERROR(check.status());
  NormJob job = JobOn(NormJob::Step::kInputGradient, x);
  job.gradient = ConstRowsView(gradient);
  job.weight = ConstRowsView(weight);
  job.inverse = StatisticsView(inverse);
  job.y = RowsView(x_gradient);
  RunNorm(job);
  return absl::OkStatus();
}

absl::Status RmsNormWeightGradient(const ConstTensorView& gradient,
                                   const ConstTensorView& x,
                                   const ConstTensorView& inverse,
                                   const TensorView& weight_gradient) {
  OperandChecker check("RmsNormWeightGradient");
  TESSERA_RETURN_IF_ERROR(CheckGradient(check, gradient, x, inverse));
  check.WritesEither("weight_gradient", weight_gradient, {{x.shape()[1]}});
  TESSERA_RETURN_IF_ERROR(check.status());
  NormJob job = JobOn(NormJob::Step::kWeightGradient, x);
  job.target_type = weight_gradient.dtype();
  job.gradient = ConstRowsView(gradient);
  job.inverse = StatisticsView(inverse);
  job.y = RowsView(weight_gradient);
  RunNorm(job);
  return absl::OkStatus();
}

absl::Status RotaryTable::Rotate(double base, bool inverse,
                                 std::span<const int64_t> positions,
                                 const TensorView& x) {
  OperandChecker check("Rotate");
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 3));
  const int64_t tokens = x.shape()[0], d = x.shape()[2];
  check.Writes("x", x, x.shape())
      .Counts("positions", positions.size(), tokens)
      .Requires(d % 2 == 0,
                absl::StrCat("\"x\" has heads of ", d,
                             " elements; their number should be even."))
      .Requires(base > 0 && std::isfinite(base),
                absl::StrCat("base is ", base,
                             "; it should be positive and finite."));
  TESSERA_RETURN_IF_ERROR(check.status());
  if (x.element_count() == 0) return absl::OkStatus();

  const bool is_wide = x.dtype() == DType::kF64;
  is_wide ? Prepare(f64_, base, d, positions)
          : Prepare(f32_, base, d, positions);
  for (int64_t i = 0; i < tokens; ++i) {
    RunRotary(
        {.dtype = x.dtype(),
         .inverse = inverse,
         .heads = x.shape()[1],
         .d = d,
         .table = is_wide ? static_cast<const void*>(&f64_[i * d])
                          : static_cast<const void*>(&f32_[i * d]),
         .x = RowsView(x.data() + i * x.strides()[0] * SizeInBytes(x.dtype()),
                       x.strides()[1])});
  }
  return absl::OkStatus();
}

template <typename S>
void RotaryTable::Prepare(std::vector<S>& table, double base, int64_t d,
                          std::span<const int64_t> positions) {
  if (base == base_ && d == d_ && table.size() == positions.size() * d &&
      std::equal(positions.begin(), positions.end(), positions_.begin(),
                 positions_.end())) {
    return;
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
}

absl::Status GatherRows(const ConstTensorView& table, IndexRange held,
                        std::span<const int64_t> ids, const TensorView& y) {
  OperandChecker check("GatherRows");
  TESSERA_RETURN_IF_ERROR(check.Leads("table", table, 2));
  const int64_t n = table.shape()[1];
  const auto tokens = static_cast<int64_t>(ids.size());
  check.Reads("table", table, {{held.size(), n}}).Writes("y", y, {{tokens, n}});
  TESSERA_RETURN_IF_ERROR(check.status());
  if (n == 0) return absl::OkStatus();
  const int64_t size = SizeInBytes(table.dtype());
  const auto bytes = static_cast<size_t>(n * size);
  for (int64_t i = 0; i < tokens; ++i) {
    std::byte* const to = y.data() + i * y.strides()[0] * size;
    if (held.contains(ids[i])) {
      const int64_t row = ids[i] - held.begin;
      std::memcpy(to, table.data() + row * table.strides()[0] * size, bytes);
    } else {
      std::memset(to, 0, bytes);
    }
  }
  return absl::OkStatus();
}

absl::Status AddRows(const ConstTensorView& gradient, IndexRange held,
                     std::span<const int64_t> ids,
                     const TensorView& table_gradient) {
  OperandChecker check("AddRows");
  TESSERA_RETURN_IF_ERROR(check.Leads("gradient", gradient, 2));
  const int64_t n = gradient.shape()[1];
  check.Counts("ids", ids.size(), gradient.shape()[0])
      .WritesEither("table_gradient", table_gradient, {{held.size(), n}});
  TESSERA_RETURN_IF_ERROR(check.status());
  const std::vector<int64_t> order = HeldInOrder(held, ids);
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    const int64_t id = ids[order[begin]];
    while (end < order.size() && ids[order[end]] == id) ++end;
    const int64_t offset = (id - held.begin) * table_gradient.strides()[0];
    RunAddRows(
        {.dtype = gradient.dtype(),
         .target_type = table_gradient.dtype(),
         .n = n,
         .gradient = ConstRowsView(gradient),
         .rows = std::span(order).subspan(begin, end - begin),
         .target = RowsView(table_gradient.data() +
                                offset * SizeInBytes(table_gradient.dtype()),
                            0)});
  }
  return absl::OkStatus();
}

absl::Status RowMax(const ConstTensorView& logits, const TensorView& largest) {
  OperandChecker check("RowMax");
  TESSERA_RETURN_IF_ERROR(check.Leads("logits", logits, 2));
  check.WritesStatistics("largest", largest, {{logits.shape()[0]}});
  TESSERA_RETURN_IF_ERROR(check.status());
  CrossEntropyJob job = JobOn(CrossEntropyStep::kMax, logits);
  job.result = RowsView(largest);
  RunCrossEntropy(job);
  return absl::OkStatus();
}

absl::Status SumExp(const ConstTensorView& logits,
                    const ConstTensorView& largest, const TensorView& sum) {
  OperandChecker check("SumExp");
  TESSERA_RETURN_IF_ERROR(check.Leads("logits", logits, 2));
  check.ReadsStatistics("largest", largest, {{logits.shape()[0]}})
      .WritesStatistics("sum", sum, {{logits.shape()[0]}});
  TESSERA_RETURN_IF_ERROR(check.status());
  CrossEntropyJob job = JobOn(CrossEntropyStep::kSumExp, logits);
  job.largest = ConstRowsView(largest);
  job.result = RowsView(sum);
  RunCrossEntropy(job);
  return absl::OkStatus();
}

absl::Status Pick(const ConstTensorView& logits, IndexRange held,
                  std::span<const int64_t> targets, const TensorView& picked) {
  OperandChecker check("Pick");
  TESSERA_RETURN_IF_ERROR(check.Leads("logits", logits, 2));
  const int64_t rows = logits.shape()[0];
  check.Reads("logits", logits, {{rows, held.size()}})
      .Counts("targets", targets.size(), rows)
      .WritesStatistics("picked", picked, {{rows}});
  TESSERA_RETURN_IF_ERROR(check.status());
  CrossEntropyJob job = JobOn(CrossEntropyStep::kPick, logits);
  job.held = held;
  job.targets = targets;
  job.result = RowsView(picked);
  RunCrossEntropy(job);
  return absl::OkStatus();
}

absl::Status CrossEntropyLosses(const ConstTensorView& largest,
                                const ConstTensorView& sum,
                                const ConstTensorView& picked,
                                std::span<double> losses) {
  const auto rows = static_cast<int64_t>(losses.size());
  for (const ConstTensorView* x : {&largest, &sum, &picked}) {
    const bool is_wide = x->dtype() == DType::kF32 || x->dtype() == DType::kF64;
    if (is_wide && x->dtype() == largest.dtype() && x->rank() == 1 &&
        x->shape()[0] == rows) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "CrossEntropyLosses: statistics ", DTypeName(x->dtype()), " ",
        DimsToString(x->shape()), "; they should be f32 or f64, all three, of ",
        rows, " tokens, as many as losses"));
  }
  return largest.dtype() == DType::kF64
             ? SetLosses<double>(largest, sum, picked, losses)
             : SetLosses<float>(largest, sum, picked, losses);
}

absl::Status CrossEntropyGradient(const ConstTensorView& largest,
                                  const ConstTensorView& sum, IndexRange held,
                                  std::span<const int64_t> targets,
                                  std::span<const double> scales,
                                  const TensorView& logits) {
  OperandChecker check("CrossEntropyGradient");
  TESSERA_RETURN_IF_ERROR(check.Leads("logits", logits, 2));
  const int64_t rows = logits.shape()[0];
  check.Writes("logits", logits, {{rows, held.size()}})
      .ReadsStatistics("largest", largest, {{rows}})
      .ReadsStatistics("sum", sum, {{rows}})
      .Counts("targets", targets.size(), rows)
      .Counts("scales", scales.size(), rows);
  TESSERA_RETURN_IF_ERROR(check.status());
  CrossEntropyJob job = JobOn(CrossEntropyStep::kGradient, logits);
  job.held = held;
  job.largest = ConstRowsView(largest);
  job.sum = ConstRowsView(sum);
  job.targets = targets;
  job.scales = scales;
  job.result = RowsView(logits);
  RunCrossEntropy(job);
  return absl::OkStatus();
}

}  // namespace tessera::tensor_parallel::cpu
