// RowsView: a matrix, or a vector as its only row, without its type. Kernels
// take these; OperandChecker has looked at the views before.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_OPERAND_CHECKER_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_OPERAND_CHECKER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel::cpu {

// `Byte` is std::byte or const std::byte.
template <typename Byte>
class BasicRowsView {
 public:
  template <typename T>
  using Like = std::conditional_t<std::is_const_v<Byte>, const T, T>;

  BasicRowsView() = default;
  // `view` has one or two dimensions.
  explicit BasicRowsView(const BasicTensorView<Byte>& view)
      : data_(view.data()), stride_(view.rank() == 2 ? view.strides()[0] : 0) {}
  BasicRowsView(Byte* data, int64_t stride) : data_(data), stride_(stride) {}

  // Elements from one row to the next.
  int64_t stride() const { return stride_; }

  template <typename T>
  Like<T>* row(int64_t index) const {
    return reinterpret_cast<Like<T>*>(data_) + index * stride_;
  }

 private:
  Byte* data_ = nullptr;
  int64_t stride_ = 0;
};

using RowsView = BasicRowsView<std::byte>;
using ConstRowsView = BasicRowsView<const std::byte>;

// OperandChecker: checks an operation's operands before it starts.
//
//   OperandChecker check("RmsNorm");
//   TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 2));
//   check.Reads("weight", weight, {{x.shape()[1]}})
//       .Writes("y", y, x.shape())
//       .WritesStatistics("inverse", inverse, {{x.shape()[0]}});
//   TESSERA_RETURN_IF_ERROR(check.status());
//
// Keeps the first error: InvalidArgument that names the operation, the tensor,
// its properties and the required ones.

// The type in which values of `dtype` are accumulated: f64 for f64, else f32.
constexpr DType StatisticsOf(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

class OperandChecker {
 public:
  // `operation` must outlive the checker: it is mostly a literal.
  explicit OperandChecker(std::string_view operation) : operation_(operation) {}

  // The tensor that determines the type (f64, f32 or bf16) of the others; it
  // has `rank` dimensions, or any number if `rank` is negative.
  absl::Status Leads(std::string_view name, const ConstTensorView& view,
                     int rank = -1);

  // A tensor of the leader's type and of `shape`.
  OperandChecker& Reads(std::string_view name, const ConstTensorView& view,
                        std::span<const int64_t> shape);
  OperandChecker& Writes(std::string_view name, const TensorView& view,
                         std::span<const int64_t> shape);
  // Written, of the leader's type or of its statistics.
  OperandChecker& WritesEither(std::string_view name, const TensorView& view,
                               std::span<const int64_t> shape);
  // A contiguous operand of statistics.
  OperandChecker& ReadsStatistics(std::string_view name,
                                  const ConstTensorView& view,
                                  std::span<const int64_t> shape);
  OperandChecker& WritesStatistics(std::string_view name,
                                   const TensorView& view,
                                   std::span<const int64_t> shape);
  // A list of numbers with one for each of `wanted` rows.
  OperandChecker& Counts(std::string_view name, size_t size, int64_t wanted);
  // Other requirements; `message` says what was given and what is allowed.
  OperandChecker& Requires(bool holds, std::string_view message);

  const absl::Status& status() const { return status_; }

 private:
  void CheckCommon(std::string_view name, const ConstTensorView& view);
  void CheckShape(std::string_view name, const ConstTensorView& view,
                  std::span<const int64_t> shape);
  void CheckType(std::string_view name, DType dtype, DType wanted);
  void CheckDistinct(std::string_view name, const TensorView& view);
  void Fail(std::string_view name, std::string_view message);

  std::string_view operation_;
  DType dtype_ = DType::kF32;
  absl::Status status_;
};

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_OPERAND_CHECKER_H_
