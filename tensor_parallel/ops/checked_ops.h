// CheckedOps: Ops from kernels. Checks the operands of each operation, and runs
// its kernel on a queue.
//
//   CheckedOps ops(queue, std::make_shared<cpu::CpuKernels>());
//
// On an immediate queue the kernel is called at once. On another one it is
// enqueued with copies of the views and with the memory that it accesses; when
// it runs, it gets views of the same elements at addresses that it may access.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CHECKED_OPS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CHECKED_OPS_H_

#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/op_kernels.h"
#include "tensor_parallel/ops/operand_checker.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/random/dropout.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

class CheckedOps : public Ops {
 public:
  // `queue` outlives it. Work that is enqueued shares the kernels.
  CheckedOps(Queue& queue, std::shared_ptr<OpKernels> kernels);

  Queue& queue() const override { return queue_; }

  absl::Status Gemm(const GemmOptions& options, ConstTensorView a,
                    ConstTensorView b, TensorView c) override;
  absl::Status CastTranspose(ConstTensorView x, ConstTensorView scale,
                             TensorView amax, TensorView y,
                             TensorView transposed) override;
  absl::Status GemmFp8(const Fp8GemmOptions& options, ConstTensorView a,
                       ConstTensorView a_inverse, ConstTensorView b,
                       ConstTensorView b_inverse, TensorView c) override;
  absl::Status UpdateScales(int margin, ConstTensorView largest,
                            TensorView amax, TensorView history,
                            TensorView scale, TensorView inverse) override;
  absl::Status AddBias(ConstTensorView bias, TensorView x) override;
  absl::Status SumRows(ConstTensorView gradient,
                       TensorView bias_gradient) override;
  absl::Status Copy(ConstTensorView x, TensorView y) override;
  absl::Status Add(ConstTensorView x, TensorView y) override;
  absl::Status Scale(double factor, TensorView x) override;
  absl::Status Fill(double value, TensorView x) override;
  absl::Status Cast(ConstTensorView x, TensorView y) override;
  absl::Status Dropout(const DropoutMask& mask, TensorView x) override;
  absl::Status RmsNorm(double epsilon, ConstTensorView x,
                       ConstTensorView weight, TensorView y,
                       TensorView inverse) override;
  absl::Status RmsNormInputGradient(ConstTensorView gradient, ConstTensorView x,
                                    ConstTensorView weight,
                                    ConstTensorView inverse,
                                    TensorView x_gradient) override;
  absl::Status AddRmsNorm(double epsilon, ConstTensorView residual,
                          ConstTensorView weight, TensorView x, TensorView y,
                          TensorView inverse) override;
  absl::Status AddRmsNormInputGradient(ConstTensorView gradient,
                                       ConstTensorView x,
                                       ConstTensorView weight,
                                       ConstTensorView inverse,
                                       ConstTensorView residual_gradient,
                                       TensorView x_gradient) override;
  absl::Status RmsNormWeightGradient(ConstTensorView gradient,
                                     ConstTensorView x, ConstTensorView inverse,
                                     TensorView weight_gradient) override;
  absl::Status Glu(GluKind kind, ConstTensorView gate, ConstTensorView up,
                   TensorView y) override;
  absl::Status GluGradient(GluKind kind, ConstTensorView gradient,
                           ConstTensorView gate, ConstTensorView up,
                           TensorView gate_gradient,
                           TensorView up_gradient) override;
  absl::Status Rotate(const RotaryFrequencies& frequencies, bool inverse,
                      ConstTensorView positions, TensorView x) override;
  absl::Status GatherRows(ConstTensorView table, IndexRange held,
                          ConstTensorView ids, TensorView y) override;
  absl::Status AddRows(ConstTensorView gradient, IndexRange held,
                       ConstTensorView ids, TensorView table_gradient) override;
  absl::Status RowMax(ConstTensorView logits, TensorView largest) override;
  absl::Status SumExp(ConstTensorView logits, ConstTensorView largest,
                      TensorView sum) override;
  absl::Status Pick(ConstTensorView logits, IndexRange held,
                    ConstTensorView targets, TensorView picked) override;
  absl::Status CrossEntropyLosses(ConstTensorView largest, ConstTensorView sum,
                                  ConstTensorView picked,
                                  ConstTensorView targets,
                                  TensorView losses) override;
  absl::Status CrossEntropyGradient(ConstTensorView largest,
                                    ConstTensorView sum, IndexRange held,
                                    ConstTensorView targets,
                                    ConstTensorView scales,
                                    const LossTerms& terms,
                                    TensorView logits) override;
  absl::Status Route(const RouterOptions& options, ConstTensorView logits,
                     ConstTensorView bias, TensorView weights,
                     TensorView experts) override;
  absl::Status RouteGradient(const RouterOptions& options,
                             ConstTensorView logits, ConstTensorView experts,
                             ConstTensorView weights_gradient,
                             ConstTensorView balance, double z_loss,
                             TensorView logits_gradient) override;
  absl::Status ScaleRows(ConstTensorView scales, ConstTensorView x,
                         TensorView y) override;
  absl::Status ScaleRowsGradient(ConstTensorView gradient,
                                 ConstTensorView scales, ConstTensorView x,
                                 TensorView x_gradient,
                                 TensorView scales_gradient) override;
  absl::Status Sum(double factor, ConstTensorView x, TensorView total) override;
  absl::Status Attend(const AttentionBlock& block,
                      const AttentionState& state) override;
  absl::Status AttendGradient(const AttentionBlock& block,
                              const AttentionGradients& gradients) override;
  absl::Status RowDots(ConstTensorView output, ConstTensorView output_gradient,
                       TensorView dots) override;

 private:
  // A checker for operands in the device's memory. `operation` is a literal.
  OperandChecker Check(std::string_view operation) const {
    return OperandChecker(operation, kind_, /*records=*/!is_immediate_);
  }

  // Returns the checker's error, or else calls or enqueues run(kernels,
  // views...). `run` captures by value.
  template <typename Run, typename... Views>
  absl::Status Enqueue(const OperandChecker& check, Run run,
                       const Views&... views) const;

  Queue& queue_;
  const bool is_immediate_;
  const MemoryKind kind_;  // The memory of operands.
  const std::shared_ptr<OpKernels> kernels_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CHECKED_OPS_H_
