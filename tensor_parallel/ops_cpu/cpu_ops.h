// CpuOps: the operations of layers on the CPU.
//
//   CpuOps ops;                       // All processors of this process.
//   CpuOps one({.threads = 1});       // Beside other ranks in the process.
//   TESSERA_RETURN_IF_ERROR(ops.Gemm({.transpose_b = true}, x, w, y));
//
// Products of matrices, those of attention among them, are OpenBLAS's, on
// several threads; all else runs in the calling thread, in vectors of the best
// instruction set that the processor has, and most of it at the speed of
// memory. The files beside this one have the groups of operations.
//
// Norms, activations, cross-entropy, sums and elementwise operations have the
// same bits for every instruction set. Gemm and the attention (OpenBLAS), and
// the sines and cosines of Rotate (the C library), need not.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_CPU_OPS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_CPU_OPS_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cpu/elementwise.h"
#include "tensor_parallel/random/dropout.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

struct CpuOpsOptions {
  // Threads of a product. 0: the processors that this process may use, which is
  // its share of the machine where its launcher has bound it (base/os/
  // processors.h), divided by the ranks in it; at least 1.
  int threads = 0;
  // Ranks that are threads of this process.
  int ranks_in_process = 1;
};

// OpenBLAS has one number of threads for the whole process, which the
// constructor sets: the last one made wins, so give all CpuOps of a process the
// same options. Ranks that are threads of one process may compute at the same
// time; with one thread each they run side by side, with more OpenBLAS lets one
// product wait for the other.
class CpuOps final : public Ops {
 public:
  explicit CpuOps(const CpuOpsOptions& options = {});

  absl::Status Gemm(const GemmOptions& options, ConstTensorView a,
                    ConstTensorView b, TensorView c) override;
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
  absl::Status RmsNormWeightGradient(ConstTensorView gradient,
                                     ConstTensorView x, ConstTensorView inverse,
                                     TensorView weight_gradient) override;
  absl::Status SwiGlu(ConstTensorView gate, ConstTensorView up,
                      TensorView y) override;
  absl::Status SwiGluGradient(ConstTensorView gradient, ConstTensorView gate,
                              ConstTensorView up, TensorView gate_gradient,
                              TensorView up_gradient) override;
  absl::Status Rotate(double base, bool inverse,
                      std::span<const int64_t> positions,
                      TensorView x) override;
  absl::Status GatherRows(ConstTensorView table, IndexRange held,
                          std::span<const int64_t> ids, TensorView y) override;
  absl::Status AddRows(ConstTensorView gradient, IndexRange held,
                       std::span<const int64_t> ids,
                       TensorView table_gradient) override;
  absl::Status RowMax(ConstTensorView logits, TensorView largest) override;
  absl::Status SumExp(ConstTensorView logits, ConstTensorView largest,
                      TensorView sum) override;
  absl::Status Pick(ConstTensorView logits, IndexRange held,
                    std::span<const int64_t> targets,
                    TensorView picked) override;
  absl::Status CrossEntropyLosses(ConstTensorView largest, ConstTensorView sum,
                                  ConstTensorView picked,
                                  std::span<double> losses) override;
  absl::Status CrossEntropyGradient(ConstTensorView largest,
                                    ConstTensorView sum, IndexRange held,
                                    std::span<const int64_t> targets,
                                    std::span<const double> scales,
                                    TensorView logits) override;
  absl::Status Attend(const AttentionBlock& block,
                      const AttentionState& state) override;
  absl::Status AttendGradient(const AttentionBlock& block,
                              const AttentionGradients& gradients) override;
  absl::Status RowDots(ConstTensorView output, ConstTensorView output_gradient,
                       TensorView dots) override;

 private:
  cpu::RotaryTable rotary_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_CPU_OPS_H_
