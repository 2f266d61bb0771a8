#include "tensor_parallel/ops/row_tables.h"

#include <cstdint>

#include "absl/status/status.h"
#include "base/device/operand_checker.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {

namespace op {

absl::Status GatherRows::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("table", table, 2));
  const int64_t n = table.shape()[1], tokens = ids.element_count();
  check.Reads("table", table, {{held.size(), n}})
      .ReadsList("ids", ids, DType::kI64, tokens)
      .Writes("y", y, {{tokens, n}});
  return check.status();
}

absl::Status AddRows::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("gradient", gradient, 2));
  const int64_t n = gradient.shape()[1];
  check.ReadsList("ids", ids, DType::kI64, gradient.shape()[0])
      .WritesEither("table_gradient", table_gradient, {{held.size(), n}});
  return check.status();
}

}  // namespace op

}  // namespace tessera::tensor_parallel
