#include "tensor_parallel/ops_cpu/rowwise/activation.h"

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops_cpu/operand/operand_checker.h"
#include "tensor_parallel/ops_cpu/operand/rows_view.h"
#include "tensor_parallel/ops_cpu/rowwise/activation_kernels.h"

namespace tessera::tensor_parallel::cpu {

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

}  // namespace tessera::tensor_parallel::cpu
