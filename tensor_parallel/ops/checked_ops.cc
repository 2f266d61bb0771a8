#include "tensor_parallel/ops/checked_ops.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/device/device.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/layout.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/op_kernels.h"
#include "tensor_parallel/ops/operand_checker.h"

namespace tessera::tensor_parallel {
namespace {

absl::Status CheckGemmShapes(OperandChecker& check, const GemmOptions& options,
                             const ConstTensorView& a, const ConstTensorView& b,
                             const TensorView& c) {
  TESSERA_RETURN_IF_ERROR(check.Leads("a", a, 2));
  check.Requires(b.rank() == 2,
                 absl::StrCat("\"b\" has shape ", DimsToString(b.shape()),
                              "; it should have 2 dimensions."));
  TESSERA_RETURN_IF_ERROR(check.status());
  const int64_t m = a.shape()[options.transpose_a ? 1 : 0];
  const int64_t n = b.shape()[options.transpose_b ? 0 : 1];
  const int64_t k = a.shape()[options.transpose_a ? 0 : 1];
  if (options.transpose_b) {
    check.Reads("b", b, {{n, k}});
  } else {
    check.Reads("b", b, {{k, n}});
  }
  return check.WritesEither("c", c, {{m, n}}).status();
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

absl::Status CheckBlock(OperandChecker& check, const AttentionBlock& block) {
  TESSERA_RETURN_IF_ERROR(check.Leads("query", block.query, 4));
  TESSERA_RETURN_IF_ERROR(
      check
          .Requires(block.key.rank() == 4,
                    absl::StrCat("\"key\" has ", block.key.rank(),
                                 " dimensions; it should have 4."))
          .status());
  const int64_t sequences = block.query.shape()[0];
  const int64_t heads = block.query.shape()[2], d = block.query.shape()[3];
  const int64_t keys = block.key.shape()[1], kv_heads = block.key.shape()[2];
  const bool divides = kv_heads == 0 ? heads == 0 : heads % kv_heads == 0;
  check.Reads("key", block.key, {{sequences, keys, kv_heads, d}})
      .Reads("value", block.value, {{sequences, keys, kv_heads, d}})
      .Requires(divides, absl::StrCat("\"query\" has ", heads,
                                      " heads, \"key\" ", kv_heads,
                                      "; the second should divide the first."));
  if (block.first_keys.has_value()) {
    check
        .ReadsRows("first_keys", *block.first_keys, DType::kI64,
                   {{sequences, block.query.shape()[1]}})
        .Requires(block.scale > 0,
                  absl::StrCat("scale is ", block.scale,
                               "; with \"first_keys\" it should be positive."));
  }
  return check.status();
}

// The operands of a block beside the mask, and the block of moved ones.
struct BlockOptions {
  explicit BlockOptions(const AttentionBlock& block)
      : kind(block.kind),
        scale(block.scale),
        has_first_keys(block.first_keys.has_value()) {}

  AttentionBlock Of(const ConstTensorView& query, const ConstTensorView& key,
                    const ConstTensorView& value,
                    const ConstTensorView& first_keys) const {
    AttentionBlock block = {query, key, value, kind, scale};
    if (has_first_keys) block.first_keys = first_keys;
    return block;
  }

  BlockKind kind;
  double scale;
  bool has_first_keys;
};

// Any operand if there are none.
const ConstTensorView& FirstKeysOf(const AttentionBlock& block) {
  return block.first_keys.has_value() ? *block.first_keys : block.query;
}

// An output that the caller does not want.
bool IsAbsent(const ConstTensorView& view) {
  return view.rank() == 2 && view.shape()[0] == 0 && view.shape()[1] == 0;
}

std::array<int64_t, 3> WithoutLast(const Dims& shape) {
  return {shape[0], shape[1], shape[2]};
}

// Types that are cast to fp8, and of products in fp8.
bool IsBesideFp8(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16;
}

}  // namespace

CheckedOps::CheckedOps(Queue& queue, std::shared_ptr<OpKernels> kernels)
    : queue_(queue),
      is_immediate_(queue.is_immediate()),
      kind_(queue.device().memory()->kind()),
      kernels_(std::move(kernels)) {}

template <typename Run, typename... Views>
absl::Status CheckedOps::Enqueue(const OperandChecker& check, Run run,
                                 const Views&... views) const {
  TESSERA_RETURN_IF_ERROR(check.status());
  if (is_immediate_) return run(*kernels_, views...);
  return queue_.Launch(
      {.name = check.operation(),
       .accesses = check.accesses(),
       .run = [run = std::move(run), kernels = kernels_,
               operands = std::tuple<Views...>(views...)](
                  const DeviceAddresses& at) -> absl::StatusOr<Event> {
         TESSERA_RETURN_IF_ERROR(std::apply(
             [&](const Views&... view) { return run(*kernels, at(view)...); },
             operands));
         return Event();
       },
       .enqueues = kernels_->enqueues()},
      place());
}

absl::Status CheckedOps::Gemm(const GemmOptions& options, ConstTensorView a,
                              ConstTensorView b, TensorView c) {
  OperandChecker check = Check("Gemm");
  TESSERA_RETURN_IF_ERROR(CheckGemmShapes(check, options, a, b, c));
  kernels_->CheckGemm(check, options, a, b, c);
  TESSERA_RETURN_IF_ERROR(check.status());
  if (c.element_count() == 0) return absl::OkStatus();
  return Enqueue(
      check,
      [options](OpKernels& kernels, const ConstTensorView& a,
                const ConstTensorView& b,
                const TensorView& c) { return kernels.Gemm(options, a, b, c); },
      a, b, c);
}

absl::Status CheckedOps::CastTranspose(ConstTensorView x, ConstTensorView scale,
                                       TensorView amax, TensorView y,
                                       TensorView transposed) {
  OperandChecker check = Check("CastTranspose");
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 2));
  const int64_t m = x.shape()[0], n = x.shape()[1];
  check
      .Requires(IsBesideFp8(x.dtype()),
                absl::StrCat("\"x\" is of ", DTypeName(x.dtype()),
                             "; it may be of f32 or bf16."))
      .ReadsScalar("scale", scale)
      .WritesScalar("amax", amax);
  if (!IsAbsent(y)) check.WritesFp8("y", y, {{m, n}});
  if (!IsAbsent(transposed)) {
    check.WritesFp8("transposed", transposed, {{n, m}});
  }
  check.Requires(
      IsAbsent(y) || IsAbsent(transposed) || y.dtype() == transposed.dtype(),
      "\"y\" and \"transposed\" should be of one type.");
  TESSERA_RETURN_IF_ERROR(check.status());
  if (x.element_count() == 0) return absl::OkStatus();
  return Enqueue(
      check,
      [](OpKernels& kernels, const ConstTensorView& x,
         const ConstTensorView& scale, const TensorView& amax,
         const TensorView& y, const TensorView& transposed) {
        return kernels.CastTranspose(x, scale, amax, y, transposed);
      },
      x, scale, amax, y, transposed);
}

absl::Status CheckedOps::GemmFp8(const Fp8GemmOptions& options,
                                 ConstTensorView a, ConstTensorView a_inverse,
                                 ConstTensorView b, ConstTensorView b_inverse,
                                 TensorView c) {
  OperandChecker check = Check("GemmFp8");
  for (const auto& [name, view] : {std::pair("a", a), std::pair("b", b),
                                   std::pair("c", ConstTensorView(c))}) {
    check.Requires(
        view.rank() == 2,
        absl::StrCat("\"", name, "\" has shape ", DimsToString(view.shape()),
                     "; it should have 2 dimensions."));
  }
  TESSERA_RETURN_IF_ERROR(check.status());
  TESSERA_RETURN_IF_ERROR(check.Leads("c", c, 2));
  const int64_t m = a.shape()[0], n = b.shape()[0], k = a.shape()[1];
  check.ReadsFp8("a", a, {{m, k}})
      .ReadsFp8("b", b, {{n, k}})
      .ReadsScalar("a_inverse", a_inverse)
      .ReadsScalar("b_inverse", b_inverse)
      .Writes("c", c, {{m, n}})
      .Requires(IsBesideFp8(c.dtype()),
                absl::StrCat("\"c\" is of ", DTypeName(c.dtype()),
                             "; it may be of f32 or bf16."))
      .Requires(a.dtype() != DType::kF8E5M2 || b.dtype() != DType::kF8E5M2,
                "\"a\" and \"b\" are of fp8_e5m2; one should be of fp8_e4m3.");
  TESSERA_RETURN_IF_ERROR(check.status());
  kernels_->CheckGemmFp8(check, a, b, c);
  TESSERA_RETURN_IF_ERROR(check.status());
  if (c.element_count() == 0) return absl::OkStatus();
  return Enqueue(
      check,
      [options](OpKernels& kernels, const ConstTensorView& a,
                const ConstTensorView& a_inverse, const ConstTensorView& b,
                const ConstTensorView& b_inverse, const TensorView& c) {
        return kernels.GemmFp8(options, a, a_inverse, b, b_inverse, c);
      },
      a, a_inverse, b, b_inverse, c);
}

absl::Status CheckedOps::UpdateScales(int margin, ConstTensorView largest,
                                      TensorView amax, TensorView history,
                                      TensorView scale, TensorView inverse) {
  OperandChecker check = Check("UpdateScales");
  TESSERA_RETURN_IF_ERROR(check.Leads("largest", largest, 1));
  const int64_t n = largest.shape()[0];
  check.ReadsList("largest", largest, DType::kF32, n)
      .WritesStatistics("amax", amax, {{n}})
      .Requires(
          history.rank() == 2,
          absl::StrCat("\"history\" has shape ", DimsToString(history.shape()),
                       "; it should have 2 dimensions."));
  TESSERA_RETURN_IF_ERROR(check.status());
  check.WritesStatistics("history", history, {{history.shape()[0], n}})
      .WritesStatistics("scale", scale, {{n}})
      .WritesStatistics("inverse", inverse, {{n}})
      .Requires(
          margin >= 0 && margin <= 100,
          absl::StrCat("the margin is ", margin, "; it must be in [0, 100]."));
  TESSERA_RETURN_IF_ERROR(check.status());
  if (n == 0) return absl::OkStatus();
  return Enqueue(
      check,
      [margin](OpKernels& kernels, const ConstTensorView& largest,
               const TensorView& amax, const TensorView& history,
               const TensorView& scale, const TensorView& inverse) {
        return kernels.UpdateScales(margin, largest, amax, history, scale,
                                    inverse);
      },
      largest, amax, history, scale, inverse);
}

absl::Status CheckedOps::AddBias(ConstTensorView bias, TensorView x) {
  OperandChecker check = Check("AddBias");
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 2));
  check.Writes("x", x, x.shape()).Reads("bias", bias, {{x.shape()[1]}});
  return Enqueue(
      check,
      [](OpKernels& kernels, const ConstTensorView& bias, const TensorView& x) {
        return kernels.AddBias(bias, x);
      },
      bias, x);
}

absl::Status CheckedOps::SumRows(ConstTensorView gradient,
                                 TensorView bias_gradient) {
  OperandChecker check = Check("SumRows");
  TESSERA_RETURN_IF_ERROR(check.Leads("gradient", gradient, 2));
  check.WritesEither("bias_gradient", bias_gradient, {{gradient.shape()[1]}});
  return Enqueue(
      check,
      [](OpKernels& kernels, const ConstTensorView& gradient,
         const TensorView& bias_gradient) {
        return kernels.SumRows(gradient, bias_gradient);
      },
      gradient, bias_gradient);
}

absl::Status CheckedOps::Copy(ConstTensorView x, TensorView y) {
  OperandChecker check = Check("Copy");
  check.Copies("x", x, "y", y);
  return Enqueue(
      check,
      [](OpKernels& kernels, const ConstTensorView& x, const TensorView& y) {
        return kernels.Copy(x, y);
      },
      x, y);
}

absl::Status CheckedOps::Add(ConstTensorView x, TensorView y) {
  OperandChecker check = Check("Add");
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x));
  check.WritesEither("y", y, x.shape());
  return Enqueue(
      check,
      [](OpKernels& kernels, const ConstTensorView& x, const TensorView& y) {
        return kernels.Add(x, y);
      },
      x, y);
}

absl::Status CheckedOps::Scale(double factor, TensorView x) {
  OperandChecker check = Check("Scale");
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x));
  check.Writes("x", x, x.shape());
  return Enqueue(
      check,
      [factor](OpKernels& kernels, const TensorView& x) {
        return kernels.Scale(factor, x);
      },
      x);
}

absl::Status CheckedOps::Fill(double value, TensorView x) {
  OperandChecker check = Check("Fill");
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x));
  check.Writes("x", x, x.shape());
  return Enqueue(
      check,
      [value](OpKernels& kernels, const TensorView& x) {
        return kernels.Fill(value, x);
      },
      x);
}

absl::Status CheckedOps::Cast(ConstTensorView x, TensorView y) {
  OperandChecker check = Check("Cast");
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x));
  if (x.dtype() == DType::kF32 &&
      (y.dtype() == DType::kBF16 || y.dtype() == DType::kF16)) {
    TESSERA_RETURN_IF_ERROR(check.Leads("y", y));  // x is its statistics.
    check.Writes("y", y, x.shape());
  } else {
    check.WritesEither("y", y, x.shape());
  }
  return Enqueue(
      check,
      [](OpKernels& kernels, const ConstTensorView& x, const TensorView& y) {
        return kernels.Cast(x, y);
      },
      x, y);
}

absl::Status CheckedOps::Dropout(const DropoutMask& mask, TensorView x) {
  OperandChecker check = Check("Dropout");
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 2));
  const auto rows = static_cast<int64_t>(mask.rows.size());
  check.Writes("x", x, {{rows, x.shape()[1]}})
      .Requires(x.IsContiguous(),
                absl::StrCat("\"x\" has strides ", DimsToString(x.strides()),
                             "; it should be contiguous."))
      .Requires(mask.probability >= 0 && mask.probability < 1,
                absl::StrCat("the probability is ", mask.probability,
                             "; it must be in [0, 1)."));
  return Enqueue(
      check,
      [key = mask.key, probability = mask.probability,
       rows = std::vector<int64_t>(mask.rows.begin(), mask.rows.end())](
          OpKernels& kernels, const TensorView& x) {
        return kernels.Dropout(
            {.key = key, .probability = probability, .rows = rows}, x);
      },
      x);
}

absl::Status CheckedOps::RowDots(ConstTensorView output,
                                 ConstTensorView output_gradient,
                                 TensorView dots) {
  OperandChecker check = Check("RowDots");
  TESSERA_RETURN_IF_ERROR(check.Leads("output_gradient", output_gradient));
  const Dims& shape = output_gradient.shape();
  if (shape.size() != 3 && shape.size() != 4) {
    check.Requires(false, absl::StrCat("\"output_gradient\" has shape ",
                                       DimsToString(shape),
                                       "; it should have 3 or 4 dimensions."));
    return check.status();
  }
  check.ReadsStatisticsRows("output", output, shape)
      .WritesStatisticsRows("dots", dots,
                            std::span(shape).first(shape.size() - 1));
  return Enqueue(
      check,
      [](OpKernels& kernels, const ConstTensorView& output,
         const ConstTensorView& output_gradient, const TensorView& dots) {
        return kernels.RowDots(output, output_gradient, dots);
      },
      output, output_gradient, dots);
}

absl::Status CheckedOps::Glu(GluKind kind, ConstTensorView gate,
                             ConstTensorView up, TensorView y) {
  OperandChecker check = Check("Glu");
  TESSERA_RETURN_IF_ERROR(check.Leads("gate", gate, 2));
  check.Reads("up", up, gate.shape()).Writes("y", y, gate.shape());
  return Enqueue(
      check,
      [kind](OpKernels& kernels, const ConstTensorView& gate,
             const ConstTensorView& up,
             const TensorView& y) { return kernels.Glu(kind, gate, up, y); },
      gate, up, y);
}

absl::Status CheckedOps::GluGradient(GluKind kind, ConstTensorView gradient,
                                     ConstTensorView gate, ConstTensorView up,
                                     TensorView gate_gradient,
                                     TensorView up_gradient) {
  OperandChecker check = Check("GluGradient");
  TESSERA_RETURN_IF_ERROR(check.Leads("gate", gate, 2));
  check.Reads("gradient", gradient, gate.shape())
      .Reads("up", up, gate.shape())
      .Writes("gate_gradient", gate_gradient, gate.shape())
      .Writes("up_gradient", up_gradient, gate.shape());
  return Enqueue(
      check,
      [kind](OpKernels& kernels, const ConstTensorView& gradient,
             const ConstTensorView& gate, const ConstTensorView& up,
             const TensorView& gate_gradient, const TensorView& up_gradient) {
        return kernels.GluGradient(kind, gradient, gate, up, gate_gradient,
                                   up_gradient);
      },
      gradient, gate, up, gate_gradient, up_gradient);
}

absl::Status CheckedOps::RmsNorm(double epsilon, ConstTensorView x,
                                 ConstTensorView weight, TensorView y,
                                 TensorView inverse) {
  OperandChecker check = Check("RmsNorm");
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 2));
  check.Reads("weight", weight, {{x.shape()[1]}})
      .Writes("y", y, x.shape())
      .WritesStatistics("inverse", inverse, {{x.shape()[0]}})
      .Requires(epsilon >= 0, absl::StrCat("epsilon is ", epsilon,
                                           "; it should be at least 0."));
  return Enqueue(
      check,
      [epsilon](OpKernels& kernels, const ConstTensorView& x,
                const ConstTensorView& weight, const TensorView& y,
                const TensorView& inverse) {
        return kernels.RmsNorm(epsilon, x, weight, y, inverse);
      },
      x, weight, y, inverse);
}

absl::Status CheckedOps::RmsNormInputGradient(ConstTensorView gradient,
                                              ConstTensorView x,
                                              ConstTensorView weight,
                                              ConstTensorView inverse,
                                              TensorView x_gradient) {
  OperandChecker check = Check("RmsNormInputGradient");
  TESSERA_RETURN_IF_ERROR(CheckGradient(check, gradient, x, inverse));
  check.Reads("weight", weight, {{x.shape()[1]}})
      .Writes("x_gradient", x_gradient, x.shape());
  return Enqueue(
      check,
      [](OpKernels& kernels, const ConstTensorView& gradient,
         const ConstTensorView& x, const ConstTensorView& weight,
         const ConstTensorView& inverse, const TensorView& x_gradient) {
        return kernels.RmsNormInputGradient(gradient, x, weight, inverse,
                                            x_gradient);
      },
      gradient, x, weight, inverse, x_gradient);
}

absl::Status CheckedOps::AddRmsNorm(double epsilon, ConstTensorView residual,
                                    ConstTensorView weight, TensorView x,
                                    TensorView y, TensorView inverse) {
  OperandChecker check = Check("AddRmsNorm");
  TESSERA_RETURN_IF_ERROR(check.Leads("residual", residual, 2));
  check.Reads("weight", weight, {{residual.shape()[1]}})
      .Reads("x", x, residual.shape())
      .Writes("x", x, residual.shape())
      .Writes("y", y, residual.shape())
      .WritesStatistics("inverse", inverse, {{residual.shape()[0]}})
      .Requires(epsilon >= 0, absl::StrCat("epsilon is ", epsilon,
                                           "; it should be at least 0."));
  return Enqueue(
      check,
      [epsilon](OpKernels& kernels, const ConstTensorView& residual,
                const ConstTensorView& weight, const TensorView& x,
                const TensorView& y, const TensorView& inverse) {
        return kernels.AddRmsNorm(epsilon, residual, weight, x, y, inverse);
      },
      residual, weight, x, y, inverse);
}

absl::Status CheckedOps::AddRmsNormInputGradient(
    ConstTensorView gradient, ConstTensorView x, ConstTensorView weight,
    ConstTensorView inverse, ConstTensorView residual_gradient,
    TensorView x_gradient) {
  OperandChecker check = Check("AddRmsNormInputGradient");
  TESSERA_RETURN_IF_ERROR(CheckGradient(check, gradient, x, inverse));
  check.Reads("weight", weight, {{x.shape()[1]}})
      .Reads("residual_gradient", residual_gradient, x.shape())
      .Writes("x_gradient", x_gradient, x.shape());
  return Enqueue(
      check,
      [](OpKernels& kernels, const ConstTensorView& gradient,
         const ConstTensorView& x, const ConstTensorView& weight,
         const ConstTensorView& inverse,
         const ConstTensorView& residual_gradient,
         const TensorView& x_gradient) {
        return kernels.AddRmsNormInputGradient(gradient, x, weight, inverse,
                                               residual_gradient, x_gradient);
      },
      gradient, x, weight, inverse, residual_gradient, x_gradient);
}

absl::Status CheckedOps::RmsNormWeightGradient(ConstTensorView gradient,
                                               ConstTensorView x,
                                               ConstTensorView inverse,
                                               TensorView weight_gradient) {
  OperandChecker check = Check("RmsNormWeightGradient");
  TESSERA_RETURN_IF_ERROR(CheckGradient(check, gradient, x, inverse));
  check.WritesEither("weight_gradient", weight_gradient, {{x.shape()[1]}});
  return Enqueue(
      check,
      [](OpKernels& kernels, const ConstTensorView& gradient,
         const ConstTensorView& x, const ConstTensorView& inverse,
         const TensorView& weight_gradient) {
        return kernels.RmsNormWeightGradient(gradient, x, inverse,
                                             weight_gradient);
      },
      gradient, x, inverse, weight_gradient);
}

absl::Status CheckedOps::Rotate(const RotaryFrequencies& frequencies,
                                bool inverse, ConstTensorView positions,
                                TensorView x) {
  OperandChecker check = Check("Rotate");
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 3));
  const int64_t d = x.shape()[2];
  check.Writes("x", x, x.shape())
      .ReadsList("positions", positions, DType::kI64, x.shape()[0])
      .Requires(d % 2 == 0,
                absl::StrCat("\"x\" has heads of ", d,
                             " elements; their number should be even."));
  const absl::Status valid = frequencies.Validate();
  check.Requires(valid.ok(), std::string(valid.message()));
  TESSERA_RETURN_IF_ERROR(check.status());
  if (x.element_count() == 0) return absl::OkStatus();
  return Enqueue(
      check,
      [frequencies, inverse](OpKernels& kernels,
                             const ConstTensorView& positions,
                             const TensorView& x) {
        return kernels.Rotate(frequencies, inverse, positions, x);
      },
      positions, x);
}

absl::Status CheckedOps::GatherRows(ConstTensorView table, IndexRange held,
                                    ConstTensorView ids, TensorView y) {
  OperandChecker check = Check("GatherRows");
  TESSERA_RETURN_IF_ERROR(check.Leads("table", table, 2));
  const int64_t n = table.shape()[1], tokens = ids.element_count();
  check.Reads("table", table, {{held.size(), n}})
      .ReadsList("ids", ids, DType::kI64, tokens)
      .Writes("y", y, {{tokens, n}});
  return Enqueue(
      check,
      [held](OpKernels& kernels, const ConstTensorView& table,
             const ConstTensorView& ids, const TensorView& y) {
        return kernels.GatherRows(table, held, ids, y);
      },
      table, ids, y);
}

absl::Status CheckedOps::AddRows(ConstTensorView gradient, IndexRange held,
                                 ConstTensorView ids,
                                 TensorView table_gradient) {
  OperandChecker check = Check("AddRows");
  TESSERA_RETURN_IF_ERROR(check.Leads("gradient", gradient, 2));
  const int64_t n = gradient.shape()[1];
  check.ReadsList("ids", ids, DType::kI64, gradient.shape()[0])
      .WritesEither("table_gradient", table_gradient, {{held.size(), n}});
  return Enqueue(
      check,
      [held](OpKernels& kernels, const ConstTensorView& gradient,
             const ConstTensorView& ids, const TensorView& table_gradient) {
        return kernels.AddRows(gradient, held, ids, table_gradient);
      },
      gradient, ids, table_gradient);
}

absl::Status CheckedOps::RowMax(ConstTensorView logits, TensorView largest) {
  OperandChecker check = Check("RowMax");
  TESSERA_RETURN_IF_ERROR(check.Leads("logits", logits, 2));
  check.WritesStatistics("largest", largest, {{logits.shape()[0]}});
  return Enqueue(
      check,
      [](OpKernels& kernels, const ConstTensorView& logits,
         const TensorView& largest) { return kernels.RowMax(logits, largest); },
      logits, largest);
}

absl::Status CheckedOps::SumExp(ConstTensorView logits, ConstTensorView largest,
                                TensorView sum) {
  OperandChecker check = Check("SumExp");
  TESSERA_RETURN_IF_ERROR(check.Leads("logits", logits, 2));
  check.ReadsStatistics("largest", largest, {{logits.shape()[0]}})
      .WritesStatistics("sum", sum, {{logits.shape()[0]}});
  return Enqueue(
      check,
      [](OpKernels& kernels, const ConstTensorView& logits,
         const ConstTensorView& largest, const TensorView& sum) {
        return kernels.SumExp(logits, largest, sum);
      },
      logits, largest, sum);
}

absl::Status CheckedOps::Pick(ConstTensorView logits, IndexRange held,
                              ConstTensorView targets, TensorView picked) {
  OperandChecker check = Check("Pick");
  TESSERA_RETURN_IF_ERROR(check.Leads("logits", logits, 2));
  const int64_t rows = logits.shape()[0];
  check.Reads("logits", logits, {{rows, held.size()}})
      .ReadsList("targets", targets, DType::kI64, rows)
      .WritesStatistics("picked", picked, {{rows}});
  return Enqueue(
      check,
      [held](OpKernels& kernels, const ConstTensorView& logits,
             const ConstTensorView& targets, const TensorView& picked) {
        return kernels.Pick(logits, held, targets, picked);
      },
      logits, targets, picked);
}

absl::Status CheckedOps::CrossEntropyLosses(ConstTensorView largest,
                                            ConstTensorView sum,
                                            ConstTensorView picked,
                                            ConstTensorView targets,
                                            TensorView losses) {
  OperandChecker check = Check("CrossEntropyLosses");
  TESSERA_RETURN_IF_ERROR(check.Leads("largest", largest, 1));
  check.ReadsStatistics("largest", largest, largest.shape())
      .ReadsStatistics("sum", sum, largest.shape())
      .ReadsStatistics("picked", picked, largest.shape())
      .ReadsList("targets", targets, DType::kI64, largest.shape()[0])
      .WritesList("losses", losses, DType::kF64, largest.shape()[0]);
  return Enqueue(
      check,
      [](OpKernels& kernels, const ConstTensorView& largest,
         const ConstTensorView& sum, const ConstTensorView& picked,
         const ConstTensorView& targets, const TensorView& losses) {
        return kernels.CrossEntropyLosses(largest, sum, picked, targets,
                                          losses);
      },
      largest, sum, picked, targets, losses);
}

namespace {

absl::Status CheckLossTerms(const LossTerms& terms, IndexRange held) {
  if (!(terms.label_smoothing >= 0 && terms.label_smoothing < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "CrossEntropyGradient: label smoothing of ", terms.label_smoothing,
        "; it should be at least 0 and below 1."));
  }
  if (!(terms.z_loss >= 0) || std::isinf(terms.z_loss)) {
    return absl::InvalidArgumentError(
        absl::StrCat("CrossEntropyGradient: a z-loss of ", terms.z_loss,
                     "; it should be at least 0 and finite."));
  }
  if (terms.label_smoothing > 0 && terms.vocabulary < held.end) {
    return absl::InvalidArgumentError(absl::StrCat(
        "CrossEntropyGradient: labels are smoothed over a vocabulary of ",
        terms.vocabulary, " words, and words up to ", held.end, " are held."));
  }
  return absl::OkStatus();
}

absl::Status CheckRouter(std::string_view operation,
                         const RouterOptions& options, int64_t experts) {
  if (options.per_token < 1 || options.per_token > experts) {
    return absl::InvalidArgumentError(
        absl::StrCat(operation, ": ", options.per_token,
                     " experts for a token; it should be at least 1 and at "
                     "most their number, which is ",
                     experts, "."));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckedOps::CrossEntropyGradient(
    ConstTensorView largest, ConstTensorView sum, IndexRange held,
    ConstTensorView targets, ConstTensorView scales, const LossTerms& terms,
    TensorView logits) {
  OperandChecker check = Check("CrossEntropyGradient");
  TESSERA_RETURN_IF_ERROR(CheckLossTerms(terms, held));
  TESSERA_RETURN_IF_ERROR(check.Leads("logits", logits, 2));
  const int64_t rows = logits.shape()[0];
  check.Writes("logits", logits, {{rows, held.size()}})
      .ReadsStatistics("largest", largest, {{rows}})
      .ReadsStatistics("sum", sum, {{rows}})
      .ReadsList("targets", targets, DType::kI64, rows)
      .ReadsList("scales", scales, DType::kF64, rows);
  return Enqueue(
      check,
      [held, terms](OpKernels& kernels, const ConstTensorView& largest,
                    const ConstTensorView& sum, const ConstTensorView& targets,
                    const ConstTensorView& scales, const TensorView& logits) {
        return kernels.CrossEntropyGradient(largest, sum, held, targets, scales,
                                            terms, logits);
      },
      largest, sum, targets, scales, logits);
}

absl::Status CheckedOps::Route(const RouterOptions& options,
                               ConstTensorView logits, ConstTensorView bias,
                               TensorView weights, TensorView experts) {
  OperandChecker check = Check("Route");
  TESSERA_RETURN_IF_ERROR(check.Leads("logits", logits, 2));
  const int64_t tokens = logits.shape()[0], count = logits.shape()[1];
  TESSERA_RETURN_IF_ERROR(CheckRouter("Route", options, count));
  check.ReadsStatistics("bias", bias, {{bias.element_count() == 0 ? 0 : count}})
      .WritesStatistics("weights", weights, {{tokens, options.per_token}})
      .WritesList("experts", experts, DType::kI64, tokens * options.per_token);
  return Enqueue(
      check,
      [options](OpKernels& kernels, const ConstTensorView& logits,
                const ConstTensorView& bias, const TensorView& weights,
                const TensorView& experts) {
        return kernels.Route(options, logits, bias, weights, experts);
      },
      logits, bias, weights, experts);
}

absl::Status CheckedOps::RouteGradient(const RouterOptions& options,
                                       ConstTensorView logits,
                                       ConstTensorView experts,
                                       ConstTensorView weights_gradient,
                                       ConstTensorView balance, double z_loss,
                                       TensorView logits_gradient) {
  OperandChecker check = Check("RouteGradient");
  TESSERA_RETURN_IF_ERROR(check.Leads("logits", logits, 2));
  const int64_t tokens = logits.shape()[0], count = logits.shape()[1];
  TESSERA_RETURN_IF_ERROR(CheckRouter("RouteGradient", options, count));
  const int64_t sequences = balance.rank() == 2 ? balance.shape()[0] : -1;
  check.ReadsList("experts", experts, DType::kI64, tokens * options.per_token)
      .ReadsStatistics("weights_gradient", weights_gradient,
                       {{tokens, options.per_token}})
      .ReadsStatistics("balance", balance,
                       {{std::max<int64_t>(sequences, 0), count}})
      .Requires(sequences == 0 || (sequences > 0 && tokens % sequences == 0),
                absl::StrCat("\"balance\" is of ", sequences, " sequences of ",
                             tokens,
                             " tokens; give a number that divides "
                             "them, or 0."))
      .WritesStatistics("logits_gradient", logits_gradient, {{tokens, count}});
  return Enqueue(
      check,
      [options, z_loss](OpKernels& kernels, const ConstTensorView& logits,
                        const ConstTensorView& experts,
                        const ConstTensorView& weights_gradient,
                        const ConstTensorView& balance,
                        const TensorView& logits_gradient) {
        return kernels.RouteGradient(options, logits, experts, weights_gradient,
                                     balance, z_loss, logits_gradient);
      },
      logits, experts, weights_gradient, balance, logits_gradient);
}

absl::Status CheckedOps::ScaleRows(ConstTensorView scales, ConstTensorView x,
                                   TensorView y) {
  OperandChecker check = Check("ScaleRows");
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 2));
  check.ReadsStatistics("scales", scales, {{x.shape()[0]}})
      .Writes("y", y, x.shape());
  return Enqueue(
      check,
      [](OpKernels& kernels, const ConstTensorView& scales,
         const ConstTensorView& x,
         const TensorView& y) { return kernels.ScaleRows(scales, x, y); },
      scales, x, y);
}

absl::Status CheckedOps::ScaleRowsGradient(ConstTensorView gradient,
                                           ConstTensorView scales,
                                           ConstTensorView x,
                                           TensorView x_gradient,
                                           TensorView scales_gradient) {
  OperandChecker check = Check("ScaleRowsGradient");
  TESSERA_RETURN_IF_ERROR(check.Leads("gradient", gradient, 2));
  check.ReadsStatistics("scales", scales, {{gradient.shape()[0]}})
      .Reads("x", x, gradient.shape())
      .Writes("x_gradient", x_gradient, gradient.shape())
      .WritesStatistics("scales_gradient", scales_gradient,
                        {{gradient.shape()[0]}});
  return Enqueue(
      check,
      [](OpKernels& kernels, const ConstTensorView& gradient,
         const ConstTensorView& scales, const ConstTensorView& x,
         const TensorView& x_gradient, const TensorView& scales_gradient) {
        return kernels.ScaleRowsGradient(gradient, scales, x, x_gradient,
                                         scales_gradient);
      },
      gradient, scales, x, x_gradient, scales_gradient);
}

absl::Status CheckedOps::Sum(double factor, ConstTensorView x,
                             TensorView total) {
  OperandChecker check = Check("Sum");
  check.ReadsList("x", x, DType::kF64, x.element_count())
      .WritesList("total", total, DType::kF64, 1);
  return Enqueue(
      check,
      [factor](OpKernels& kernels, const ConstTensorView& x,
               const TensorView& total) {
        return kernels.Sum(factor, x, total);
      },
      x, total);
}

absl::Status CheckedOps::Attend(const AttentionBlock& block,
                                const AttentionState& state) {
  OperandChecker check = Check("Attend");
  TESSERA_RETURN_IF_ERROR(CheckBlock(check, block));
  const Dims& shape = block.query.shape();
  check.WritesStatisticsRows("output", state.output, shape)
      .WritesStatisticsRows("log_sum_exp", state.log_sum_exp,
                            WithoutLast(shape));
  TESSERA_RETURN_IF_ERROR(check.status());
  kernels_->CheckAttention(check, block);
  if (block.kind == BlockKind::kNone) return check.status();
  return Enqueue(
      check,
      [options = BlockOptions(block)](
          OpKernels& kernels, const ConstTensorView& query,
          const ConstTensorView& key, const ConstTensorView& value,
          const ConstTensorView& first_keys, const TensorView& output,
          const TensorView& log_sum_exp) {
        return kernels.Attend(options.Of(query, key, value, first_keys),
                              {output, log_sum_exp});
      },
      block.query, block.key, block.value, FirstKeysOf(block), state.output,
      state.log_sum_exp);
}

absl::Status CheckedOps::AttendGradient(const AttentionBlock& block,
                                        const AttentionGradients& gradients) {
  OperandChecker check = Check("AttendGradient");
  TESSERA_RETURN_IF_ERROR(CheckBlock(check, block));
  const Dims& shape = block.query.shape();
  check.Reads("output_gradient", gradients.output_gradient, shape)
      .ReadsStatisticsRows("output", gradients.output, shape)
      .ReadsStatisticsRows("log_sum_exp", gradients.log_sum_exp,
                           WithoutLast(shape))
      .ReadsStatisticsRows("delta", gradients.delta, WithoutLast(shape))
      .WritesStatisticsRows("query_gradient", gradients.query_gradient, shape)
      .WritesStatisticsRows("key_gradient", gradients.key_gradient,
                            block.key.shape())
      .WritesStatisticsRows("value_gradient", gradients.value_gradient,
                            block.key.shape());
  TESSERA_RETURN_IF_ERROR(check.status());
  kernels_->CheckAttentionGradient(check, block, gradients);
  if (block.kind == BlockKind::kNone) return check.status();
  return Enqueue(
      check,
      [options = BlockOptions(block)](
          OpKernels& kernels, const ConstTensorView& query,
          const ConstTensorView& key, const ConstTensorView& value,
          const ConstTensorView& first_keys,
          const ConstTensorView& output_gradient, const ConstTensorView& output,
          const ConstTensorView& log_sum_exp, const ConstTensorView& delta,
          const TensorView& query_gradient, const TensorView& key_gradient,
          const TensorView& value_gradient) {
        return kernels.AttendGradient(
            options.Of(query, key, value, first_keys),
            {output_gradient, output, log_sum_exp, delta, query_gradient,
             key_gradient, value_gradient});
      },
      block.query, block.key, block.value, FirstKeysOf(block),
      gradients.output_gradient, gradients.output, gradients.log_sum_exp,
      gradients.delta, gradients.query_gradient, gradients.key_gradient,
      gradients.value_gradient);
}

}  // namespace tessera::tensor_parallel
