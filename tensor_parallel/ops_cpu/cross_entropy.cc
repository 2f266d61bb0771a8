#include "tensor_parallel/ops_cpu/rowwise/cross_entropy.h"

#include <cmath>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops_cpu/operand/operand_checker.h"
#include "tensor_parallel/ops_cpu/operand/rows_view.h"
#include "tensor_parallel/ops_cpu/rowwise/cross_entropy_kernels.h"
#include "tensor_parallel/sharding/index_range.h"

namespace tessera::tensor_parallel::cpu {
namespace {

using Step = CrossEntropyJob::Step;

CrossEntropyJob JobOn(Step step, const ConstTensorView& logits) {
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

absl::Status RowMax(const ConstTensorView& logits, const TensorView& largest) {
  OperandChecker check("RowMax");
  TESSERA_RETURN_IF_ERROR(check.Leads("logits", logits, 2));
  check.WritesStatistics("largest", largest, {{logits.shape()[0]}});
  TESSERA_RETURN_IF_ERROR(check.status());
  CrossEntropyJob job = JobOn(Step::kMax, logits);
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
  CrossEntropyJob job = JobOn(Step::kSumExp, logits);
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
  CrossEntropyJob job = JobOn(Step::kPick, logits);
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
  CrossEntropyJob job = JobOn(Step::kGradient, logits);
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
