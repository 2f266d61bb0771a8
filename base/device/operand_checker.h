// OperandChecker: checks the operands of an operation before it starts.
//
//   OperandChecker check("RmsNorm");
//   TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 2));
//   check.Reads("weight", weight, {{x.shape()[1]}})
//       .Writes("y", y, x.shape())
//       .WritesStatistics("inverse", inverse, {{x.shape()[0]}});
//   TESSERA_RETURN_IF_ERROR(check.status());
//
// Keeps the first error, an InvalidArgument that names the operation, the
// tensor, its properties and the required ones. On request, records which
// memory the operation reads and writes.
#ifndef TESSERA_BASE_DEVICE_OPERAND_CHECKER_H_
#define TESSERA_BASE_DEVICE_OPERAND_CHECKER_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/dtype/dtype.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"

namespace tessera {

// The type in which values of `dtype` are accumulated: f64 for f64, else f32.
constexpr DType StatisticsOf(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

class OperandChecker {
 public:
  // `operation` must outlive the checker; it is usually a literal. Operands
  // must be accessible to the host if and only if memory of `kind` is.
  explicit OperandChecker(std::string_view operation,
                          MemoryKind kind = MemoryKind::kHost,
                          bool records = false)
      : operation_(operation), kind_(kind), records_(records) {}

  // Declares the leader, the tensor that determines the type (f64, f32, bf16 or
  // f16) of the others. It has `rank` dimensions, or any number if `rank` is
  // negative.
  absl::Status Leads(std::string_view name, const ConstTensorView& view,
                     int rank = -1);

  // A tensor of the leader's type and of `shape`.
  OperandChecker& Reads(std::string_view name, const ConstTensorView& view,
                        std::span<const int64_t> shape);
  OperandChecker& Writes(std::string_view name, const TensorView& view,
                         std::span<const int64_t> shape);
  // A written tensor of the leader's type or of its statistics type
  // (StatisticsOf).
  OperandChecker& WritesEither(std::string_view name, const TensorView& view,
                               std::span<const int64_t> shape);
  // A contiguous tensor of the statistics type.
  OperandChecker& ReadsStatistics(std::string_view name,
                                  const ConstTensorView& view,
                                  std::span<const int64_t> shape);
  OperandChecker& WritesStatistics(std::string_view name,
                                   const TensorView& view,
                                   std::span<const int64_t> shape);
  // The same, but with possible gaps between rows (the last dimension).
  OperandChecker& ReadsStatisticsRows(std::string_view name,
                                      const ConstTensorView& view,
                                      std::span<const int64_t> shape);
  OperandChecker& WritesStatisticsRows(std::string_view name,
                                       const TensorView& view,
                                       std::span<const int64_t> shape);
  // A contiguous tensor of `count` elements of `dtype`, of any shape.
  OperandChecker& ReadsList(std::string_view name, const ConstTensorView& view,
                            DType dtype, int64_t count);
  OperandChecker& WritesList(std::string_view name, const TensorView& view,
                             DType dtype, int64_t count);
  // A tensor of `dtype` and `shape`, with possible gaps between rows.
  OperandChecker& ReadsRows(std::string_view name, const ConstTensorView& view,
                            DType dtype, std::span<const int64_t> shape);
  // A tensor of fp8_e4m3 or fp8_e5m2, of `shape`.
  OperandChecker& ReadsFp8(std::string_view name, const ConstTensorView& view,
                           std::span<const int64_t> shape);
  OperandChecker& WritesFp8(std::string_view name, const TensorView& view,
                            std::span<const int64_t> shape);
  // A single f32.
  OperandChecker& ReadsScalar(std::string_view name,
                              const ConstTensorView& view);
  OperandChecker& WritesScalar(std::string_view name, const TensorView& view);
  // The source and target of a copy: any type and shape, but the same for both.
  OperandChecker& Copies(std::string_view source_name,
                         const ConstTensorView& source,
                         std::string_view target_name,
                         const TensorView& target);
  // Requires a matrix whose rows do not overlap, with sizes and a stride of at
  // most `most`, as GEMM libraries expect.
  OperandChecker& HasSeparateRows(std::string_view name,
                                  const ConstTensorView& view, int64_t most);
  // Any other requirement; `message` says what was given and what is allowed.
  OperandChecker& Requires(bool holds, std::string_view message);
  // Records an access to memory outside of tensors.
  OperandChecker& Accesses(const MemoryAccess& access);

  const absl::Status& status() const { return status_; }

  std::string_view operation() const { return operation_; }
  // Empty unless the checker records accesses.
  const absl::InlinedVector<MemoryAccess, 6>& accesses() const {
    return accesses_;
  }

 private:
  void CheckFp8(std::string_view name, const ConstTensorView& view,
                std::span<const int64_t> shape);
  void CheckScalar(std::string_view name, const ConstTensorView& view);
  void CheckKind(std::string_view name, MemoryKind kind);
  void CheckCommon(std::string_view name, const ConstTensorView& view);
  void CheckList(std::string_view name, const ConstTensorView& view,
                 DType dtype, int64_t count);
  void CheckShape(std::string_view name, const ConstTensorView& view,
                  std::span<const int64_t> shape);
  void CheckType(std::string_view name, DType dtype, DType wanted);
  void CheckDistinct(std::string_view name, const TensorView& view);
  void CheckContiguous(std::string_view name, const ConstTensorView& view,
                       std::string_view what);
  void RecordRead(const ConstTensorView& view);
  void RecordWrite(const TensorView& view);
  void Fail(std::string_view name, std::string_view message);

  std::string_view operation_;
  MemoryKind kind_;
  bool records_;
  DType dtype_ = DType::kF32;
  absl::Status status_;
  absl::InlinedVector<MemoryAccess, 6> accesses_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_OPERAND_CHECKER_H_
