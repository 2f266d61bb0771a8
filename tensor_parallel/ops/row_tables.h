// Rows of a table by their ids: embeddings, and the order of tokens by expert.
//
//   ops.Run(op::GatherRows{table, held, ids, y});
#ifndef TESSERA_TENSOR_PARALLEL_OPS_ROW_TABLES_H_
#define TESSERA_TENSOR_PARALLEL_OPS_ROW_TABLES_H_

#include <string_view>
#include <tuple>

#include "absl/status/status.h"
#include "base/device/operation.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

namespace op {

// y[i] = table[ids[i] - held.begin], or zeros if `held` does not contain
// ids[i]; y is [tokens, n], `table` [held.size(), n].
struct GatherRows {
  static constexpr std::string_view kName = "GatherRows";
  ConstTensorView table;
  IndexRange held;
  ConstTensorView ids;
  TensorView y;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(table, ids, y); }
};

// table_gradient[ids[i] - held.begin] += gradient[i], in the order of i, for
// ids that `held` contains; ids may repeat. table_gradient may have the type of
// statistics.
struct AddRows {
  static constexpr std::string_view kName = "AddRows";
  ConstTensorView gradient;
  IndexRange held;
  ConstTensorView ids;
  TensorView table_gradient;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(gradient, ids, table_gradient); }
};

using RowTables = OperationList<GatherRows, AddRows>;

}  // namespace op

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_ROW_TABLES_H_
