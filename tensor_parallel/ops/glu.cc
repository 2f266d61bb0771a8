#include "tensor_parallel/ops/glu.h"

#include "absl/status/status.h"
#include "base/device/operand_checker.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {

namespace op {

absl::Status Glu::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("gate", gate, 2));
  check.Reads("up", up, gate.shape()).Writes("y", y, gate.shape());
  return check.status();
}

absl::Status GluGradient::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("gate", gate, 2));
  check.Reads("gradient", gradient, gate.shape())
      .Reads("up", up, gate.shape())
      .Writes("gate_gradient", gate_gradient, gate.shape())
      .Writes("up_gradient", up_gradient, gate.shape());
  return check.status();
}

}  // namespace op

}  // namespace tessera::tensor_parallel
