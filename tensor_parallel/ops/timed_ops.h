// TimedOps: forwards operations to another Ops and reports when each call began
// and ended: on an immediate queue, when the operation ran.
//
//   CpuOps cpu({.threads = 1});
//   TimedOps ops(cpu, clock, [&](TimedOps::Kind, std::string_view name,
//                                int64_t begin, int64_t end) {
//     nanoseconds[name] += end - begin;
//   });
//   ...  // layers on `ops`
#ifndef TESSERA_TENSOR_PARALLEL_OPS_TIMED_OPS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_TIMED_OPS_H_

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/random/dropout.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

class TimedOps final : public Ops {
 public:
  enum class Kind {
    kProduct,    // Gemm, GemmFp8.
    kAttention,  // Attend, AttendGradient.
    kOther,
  };
  using Clock = int64_t (*)();
  // Called after each operation, on its thread, with its times by the clock.
  // `name` is that of the method and has static storage.
  using Observer = std::function<void(Kind kind, std::string_view name,
                                      int64_t begin, int64_t end)>;

  // `ops` outlives this.
  TimedOps(Ops& ops, Clock clock, Observer observer)
      : ops_(ops), clock_(clock), observer_(std::move(observer)) {}

  Queue& queue() const override { return ops_.queue(); }
  bool computes() const override { return ops_.computes(); }

  absl::Status Gemm(const GemmOptions& options, ConstTensorView a,
                    ConstTensorView b, TensorView c) override {
    return Time(Kind::kProduct, "Gemm",
                [&] { return ops_.Gemm(options, a, b, c); });
  }
  absl::Status CastTranspose(ConstTensorView x, ConstTensorView scale,
                             TensorView amax, TensorView y,
                             TensorView transposed) override {
    return Rest("CastTranspose", [&] {
      return ops_.CastTranspose(x, scale, amax, y, transposed);
    });
  }
  absl::Status GemmFp8(const Fp8GemmOptions& options, ConstTensorView a,
                       ConstTensorView a_inverse, ConstTensorView b,
                       ConstTensorView b_inverse, TensorView c) override {
    return Time(Kind::kProduct, "GemmFp8", [&] {
      return ops_.GemmFp8(options, a, a_inverse, b, b_inverse, c);
    });
  }
  absl::Status UpdateScales(int margin, ConstTensorView largest,
                            TensorView amax, TensorView history,
                            TensorView scale, TensorView inverse) override {
    return Rest("UpdateScales", [&] {
      return ops_.UpdateScales(margin, largest, amax, history, scale, inverse);
    });
  }
  absl::Status AddBias(ConstTensorView bias, TensorView x) override {
    return Rest("AddBias", [&] { return ops_.AddBias(bias, x); });
  }
  absl::Status SumRows(ConstTensorView gradient,
                       TensorView bias_gradient) override {
    return Rest("SumRows",
                [&] { return ops_.SumRows(gradient, bias_gradient); });
  }
  absl::Status Copy(ConstTensorView x, TensorView y) override {
    return Rest("Copy", [&] { return ops_.Copy(x, y); });
  }
  absl::Status Add(ConstTensorView x, TensorView y) override {
    return Rest("Add", [&] { return ops_.Add(x, y); });
  }
  absl::Status Scale(double factor, TensorView x) override {
    return Rest("Scale", [&] { return ops_.Scale(factor, x); });
  }
  absl::Status Fill(double value, TensorView x) override {
    return Rest("Fill", [&] { return ops_.Fill(value, x); });
  }
  absl::Status Cast(ConstTensorView x, TensorView y) override {
    return Rest("Cast", [&] { return ops_.Cast(x, y); });
  }
  absl::Status Dropout(const DropoutMask& mask, TensorView x) override {
    return Rest("Dropout", [&] { return ops_.Dropout(mask, x); });
  }
  absl::Status RmsNorm(double epsilon, ConstTensorView x,
                       ConstTensorView weight, TensorView y,
                       TensorView inverse) override {
    return Rest("RmsNorm",
                [&] { return ops_.RmsNorm(epsilon, x, weight, y, inverse); });
  }
  absl::Status RmsNormInputGradient(ConstTensorView gradient, ConstTensorView x,
                                    ConstTensorView weight,
                                    ConstTensorView inverse,
                                    TensorView x_gradient) override {
    return Rest("RmsNormInputGradient", [&] {
      return ops_.RmsNormInputGradient(gradient, x, weight, inverse,
                                       x_gradient);
    });
  }
  absl::Status AddRmsNorm(double epsilon, ConstTensorView residual,
                          ConstTensorView weight, TensorView x, TensorView y,
                          TensorView inverse) override {
    return Rest("AddRmsNorm", [&] {
      return ops_.AddRmsNorm(epsilon, residual, weight, x, y, inverse);
    });
  }
  absl::Status AddRmsNormInputGradient(ConstTensorView gradient,
                                       ConstTensorView x,
                                       ConstTensorView weight,
                                       ConstTensorView inverse,
                                       ConstTensorView residual_gradient,
                                       TensorView x_gradient) override {
    return Rest("AddRmsNormInputGradient", [&] {
      return ops_.AddRmsNormInputGradient(gradient, x, weight, inverse,
                                          residual_gradient, x_gradient);
    });
  }
  absl::Status RmsNormWeightGradient(ConstTensorView gradient,
                                     ConstTensorView x, ConstTensorView inverse,
                                     TensorView weight_gradient) override {
    return Rest("RmsNormWeightGradient", [&] {
      return ops_.RmsNormWeightGradient(gradient, x, inverse, weight_gradient);
    });
  }
  absl::Status Glu(GluKind kind, ConstTensorView gate, ConstTensorView up,
                   TensorView y) override {
    return Rest("Glu", [&] { return ops_.Glu(kind, gate, up, y); });
  }
  absl::Status GluGradient(GluKind kind, ConstTensorView gradient,
                           ConstTensorView gate, ConstTensorView up,
                           TensorView gate_gradient,
                           TensorView up_gradient) override {
    return Rest("GluGradient", [&] {
      return ops_.GluGradient(kind, gradient, gate, up, gate_gradient,
                              up_gradient);
    });
  }
  absl::Status Rotate(const RotaryFrequencies& frequencies, bool inverse,
                      ConstTensorView positions, TensorView x) override {
    return Rest("Rotate", [&] {
      return ops_.Rotate(frequencies, inverse, positions, x);
    });
  }
  absl::Status GatherRows(ConstTensorView table, IndexRange held,
                          ConstTensorView ids, TensorView y) override {
    return Rest("GatherRows",
                [&] { return ops_.GatherRows(table, held, ids, y); });
  }
  absl::Status AddRows(ConstTensorView gradient, IndexRange held,
                       ConstTensorView ids,
                       TensorView table_gradient) override {
    return Rest("AddRows", [&] {
      return ops_.AddRows(gradient, held, ids, table_gradient);
    });
  }
  absl::Status RowMax(ConstTensorView logits, TensorView largest) override {
    return Rest("RowMax", [&] { return ops_.RowMax(logits, largest); });
  }
  absl::Status SumExp(ConstTensorView logits, ConstTensorView largest,
                      TensorView sum) override {
    return Rest("SumExp", [&] { return ops_.SumExp(logits, largest, sum); });
  }
  absl::Status Pick(ConstTensorView logits, IndexRange held,
                    ConstTensorView targets, TensorView picked) override {
    return Rest("Pick",
                [&] { return ops_.Pick(logits, held, targets, picked); });
  }
  absl::Status CrossEntropyLosses(ConstTensorView largest, ConstTensorView sum,
                                  ConstTensorView picked,
                                  ConstTensorView targets,
                                  TensorView losses) override {
    return Rest("CrossEntropyLosses", [&] {
      return ops_.CrossEntropyLosses(largest, sum, picked, targets, losses);
    });
  }
  absl::Status CrossEntropyGradient(ConstTensorView largest,
                                    ConstTensorView sum, IndexRange held,
                                    ConstTensorView targets,
                                    ConstTensorView scales,
                                    const LossTerms& terms,
                                    TensorView logits) override {
    return Rest("CrossEntropyGradient", [&] {
      return ops_.CrossEntropyGradient(largest, sum, held, targets, scales,
                                       terms, logits);
    });
  }
  absl::Status Route(const RouterOptions& options, ConstTensorView logits,
                     ConstTensorView bias, TensorView weights,
                     TensorView experts) override {
    return Rest("Route", [&] {
      return ops_.Route(options, logits, bias, weights, experts);
    });
  }
  absl::Status RouteGradient(const RouterOptions& options,
                             ConstTensorView logits, ConstTensorView experts,
                             ConstTensorView weights_gradient,
                             ConstTensorView balance, double z_loss,
                             TensorView logits_gradient) override {
    return Rest("RouteGradient", [&] {
      return ops_.RouteGradient(options, logits, experts, weights_gradient,
                                balance, z_loss, logits_gradient);
    });
  }
  absl::Status ScaleRows(ConstTensorView scales, ConstTensorView x,
                         TensorView y) override {
    return Rest("ScaleRows", [&] { return ops_.ScaleRows(scales, x, y); });
  }
  absl::Status ScaleRowsGradient(ConstTensorView gradient,
                                 ConstTensorView scales, ConstTensorView x,
                                 TensorView x_gradient,
                                 TensorView scales_gradient) override {
    return Rest("ScaleRowsGradient", [&] {
      return ops_.ScaleRowsGradient(gradient, scales, x, x_gradient,
                                    scales_gradient);
    });
  }
  absl::Status Sum(double factor, ConstTensorView x,
                   TensorView total) override {
    return Rest("Sum", [&] { return ops_.Sum(factor, x, total); });
  }
  absl::Status Attend(const AttentionBlock& block,
                      const AttentionState& state) override {
    return Time(Kind::kAttention, "Attend",
                [&] { return ops_.Attend(block, state); });
  }
  absl::Status AttendGradient(const AttentionBlock& block,
                              const AttentionGradients& gradients) override {
    return Time(Kind::kAttention, "AttendGradient",
                [&] { return ops_.AttendGradient(block, gradients); });
  }
  absl::Status RowDots(ConstTensorView output, ConstTensorView output_gradient,
                       TensorView dots) override {
    return Rest("RowDots",
                [&] { return ops_.RowDots(output, output_gradient, dots); });
  }

 private:
  template <typename Operation>
  absl::Status Time(Kind kind, std::string_view name,
                    const Operation& operation) {
    ops_.SetPlace(place());
    const int64_t begin = clock_();
    absl::Status status = operation();
    observer_(kind, name, begin, clock_());
    return status;
  }
  template <typename Operation>
  absl::Status Rest(std::string_view name, const Operation& operation) {
    return Time(Kind::kOther, name, operation);
  }

  Ops& ops_;
  const Clock clock_;
  const Observer observer_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_TIMED_OPS_H_
