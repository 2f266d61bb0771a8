#include "tensor_parallel/ops_cpu/rowwise/row_table.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops_cpu/operand/operand_checker.h"
#include "tensor_parallel/ops_cpu/operand/rows_view.h"
#include "tensor_parallel/ops_cpu/rowwise/row_table_kernels.h"
#include "tensor_parallel/sharding/index_range.h"

namespace tessera::tensor_parallel::cpu {
namespace {

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

}  // namespace

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

}  // namespace tessera::tensor_parallel::cpu
