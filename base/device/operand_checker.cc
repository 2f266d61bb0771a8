#include "base/device/operand_checker.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/device/device.h"
#include "base/dtype/dtype.h"
#include "base/tensor/layout.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"

namespace tessera {
namespace {

bool IsFp8(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2;
}

bool IsComputed(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 ||
         dtype == DType::kBF16 || dtype == DType::kF16;
}

}  // namespace

absl::Status OperandChecker::Leads(std::string_view name,
                                   const ConstTensorView& view, int rank) {
  dtype_ = view.dtype();
  if (!IsComputed(dtype_)) {
    Fail(name,
         absl::StrCat("is of ", DTypeName(dtype_),
                      "; it may be of f64, f32, bf16 or f16: convert it"));
  }
  if (rank >= 0 && view.rank() != rank) {
    Fail(name, absl::StrCat("has shape ", DimsToString(view.shape()),
                            "; it should have ", rank, " dimensions"));
  }
  CheckCommon(name, view);
  RecordRead(view);
  return status_;
}

OperandChecker& OperandChecker::Reads(std::string_view name,
                                      const ConstTensorView& view,
                                      std::span<const int64_t> shape) {
  return ReadsRows(name, view, dtype_, shape);
}

OperandChecker& OperandChecker::Writes(std::string_view name,
                                       const TensorView& view,
                                       std::span<const int64_t> shape) {
  CheckType(name, view.dtype(), dtype_);
  return WritesEither(name, view, shape);
}

OperandChecker& OperandChecker::WritesEither(std::string_view name,
                                             const TensorView& view,
                                             std::span<const int64_t> shape) {
  if (view.dtype() != StatisticsOf(dtype_)) {
    CheckType(name, view.dtype(), dtype_);
  }
  CheckShape(name, view, shape);
  CheckCommon(name, view);
  CheckDistinct(name, view);
  RecordWrite(view);
  return *this;
}

OperandChecker& OperandChecker::ReadsStatistics(
    std::string_view name, const ConstTensorView& view,
    std::span<const int64_t> shape) {
  ReadsStatisticsRows(name, view, shape);
  CheckContiguous(name, view, "statistics");
  return *this;
}

OperandChecker& OperandChecker::WritesStatistics(
    std::string_view name, const TensorView& view,
    std::span<const int64_t> shape) {
  WritesStatisticsRows(name, view, shape);
  CheckContiguous(name, view, "statistics");
  return *this;
}

OperandChecker& OperandChecker::ReadsStatisticsRows(
    std::string_view name, const ConstTensorView& view,
    std::span<const int64_t> shape) {
  return ReadsRows(name, view, StatisticsOf(dtype_), shape);
}

OperandChecker& OperandChecker::WritesStatisticsRows(
    std::string_view name, const TensorView& view,
    std::span<const int64_t> shape) {
  CheckType(name, view.dtype(), StatisticsOf(dtype_));
  return WritesEither(name, view, shape);
}

OperandChecker& OperandChecker::ReadsList(std::string_view name,
                                          const ConstTensorView& view,
                                          DType dtype, int64_t count) {
  CheckList(name, view, dtype, count);
  RecordRead(view);
  return *this;
}

OperandChecker& OperandChecker::WritesList(std::string_view name,
                                           const TensorView& view, DType dtype,
                                           int64_t count) {
  CheckList(name, view, dtype, count);
  RecordWrite(view);
  return *this;
}

OperandChecker& OperandChecker::ReadsRows(std::string_view name,
                                          const ConstTensorView& view,
                                          DType dtype,
                                          std::span<const int64_t> shape) {
  CheckType(name, view.dtype(), dtype);
  CheckShape(name, view, shape);
  CheckCommon(name, view);
  RecordRead(view);
  return *this;
}

OperandChecker& OperandChecker::ReadsFp8(std::string_view name,
                                         const ConstTensorView& view,
                                         std::span<const int64_t> shape) {
  CheckFp8(name, view, shape);
  RecordRead(view);
  return *this;
}

OperandChecker& OperandChecker::WritesFp8(std::string_view name,
                                          const TensorView& view,
                                          std::span<const int64_t> shape) {
  CheckFp8(name, view, shape);
  CheckDistinct(name, view);
  RecordWrite(view);
  return *this;
}

OperandChecker& OperandChecker::ReadsScalar(std::string_view name,
                                            const ConstTensorView& view) {
  CheckScalar(name, view);
  RecordRead(view);
  return *this;
}

OperandChecker& OperandChecker::WritesScalar(std::string_view name,
                                             const TensorView& view) {
  CheckScalar(name, view);
  RecordWrite(view);
  return *this;
}

OperandChecker& OperandChecker::Copies(std::string_view source_name,
                                       const ConstTensorView& source,
                                       std::string_view target_name,
                                       const TensorView& target) {
  CheckType(target_name, target.dtype(), source.dtype());
  CheckShape(target_name, target, source.shape());
  CheckKind(source_name, source.kind());
  CheckKind(target_name, target.kind());
  CheckDistinct(target_name, target);
  RecordRead(source);
  RecordWrite(target);
  return *this;
}

OperandChecker& OperandChecker::HasSeparateRows(std::string_view name,
                                                const ConstTensorView& view,
                                                int64_t most) {
  const int64_t rows = view.shape()[0], columns = view.shape()[1];
  const int64_t stride = view.strides()[0];
  const bool fits = rows <= most && columns <= most;
  const bool apart =
      rows <= 1 || columns == 0 || (stride >= columns && stride <= most);
  if (fits && apart) return *this;
  return Requires(
      false,
      absl::StrCat("\"", name, "\" has shape ", DimsToString(view.shape()),
                   " and strides ", DimsToString(view.strides()),
                   "; sizes and the stride of rows may be at most ", most,
                   ", and rows should not overlap: copy it."));
}

OperandChecker& OperandChecker::Requires(bool holds, std::string_view message) {
  if (!holds && status_.ok()) {
    status_ =
        absl::InvalidArgumentError(absl::StrCat(operation_, ": ", message));
  }
  return *this;
}

OperandChecker& OperandChecker::Accesses(const MemoryAccess& access) {
  if (records_) accesses_.push_back(access);
  return *this;
}

void OperandChecker::CheckFp8(std::string_view name,
                              const ConstTensorView& view,
                              std::span<const int64_t> shape) {
  if (!IsFp8(view.dtype())) {
    Fail(name, absl::StrCat("is of ", DTypeName(view.dtype()),
                            "; it should be of fp8_e4m3 or fp8_e5m2"));
  }
  CheckShape(name, view, shape);
  CheckCommon(name, view);
}

void OperandChecker::CheckScalar(std::string_view name,
                                 const ConstTensorView& view) {
  CheckType(name, view.dtype(), DType::kF32);
  if (view.element_count() != 1) {
    Fail(name, absl::StrCat("has shape ", DimsToString(view.shape()),
                            "; it should have one element"));
  }
  CheckCommon(name, view);
}

void OperandChecker::CheckKind(std::string_view name, MemoryKind kind) {
  if (IsHostAccessible(kind) == IsHostAccessible(kind_)) return;
  Fail(name,
       absl::StrCat("lies in ", MemoryKindName(kind),
                    IsHostAccessible(kind)
                        ? " memory; copy it to the memory of the device"
                        : " memory, which the CPU cannot reach; copy it to "
                          "the host or use the device's Ops"));
}

void OperandChecker::CheckCommon(std::string_view name,
                                 const ConstTensorView& view) {
  CheckKind(name, view.kind());
  if (view.element_count() == 0) return;
  if (view.rank() > 0 && view.shape().back() > 1 &&
      view.strides().back() != 1) {
    Fail(name, absl::StrCat("has strides ", DimsToString(view.strides()),
                            "; the elements of a row should lie side by side: "
                            "the last one should be 1"));
  }
  const auto size = static_cast<uintptr_t>(SizeInBytes(view.dtype()));
  if (reinterpret_cast<uintptr_t>(view.data()) % size != 0) {
    Fail(name, absl::StrCat("does not begin at a multiple of the ", size,
                            " bytes of its elements"));
  }
}

void OperandChecker::CheckList(std::string_view name,
                               const ConstTensorView& view, DType dtype,
                               int64_t count) {
  CheckType(name, view.dtype(), dtype);
  if (view.element_count() != count) {
    Fail(name,
         absl::StrCat("has ", view.element_count(), " numbers; it should have ",
                      count, ", one for each row"));
  }
  CheckCommon(name, view);
  CheckContiguous(name, view, "lists");
}

void OperandChecker::CheckShape(std::string_view name,
                                const ConstTensorView& view,
                                std::span<const int64_t> shape) {
  if (!std::equal(shape.begin(), shape.end(), view.shape().begin(),
                  view.shape().end())) {
    Fail(name, absl::StrCat("has shape ", DimsToString(view.shape()),
                            "; it should be ", DimsToString(shape)));
  }
}

void OperandChecker::CheckType(std::string_view name, DType dtype,
                               DType wanted) {
  if (dtype != wanted) {
    Fail(name, absl::StrCat("is of ", DTypeName(dtype), "; it should be of ",
                            DTypeName(wanted)));
  }
}

void OperandChecker::CheckDistinct(std::string_view name,
                                   const TensorView& view) {
  if (!view.layout().HasDistinctElements()) {
    Fail(name, absl::StrCat("has strides ", DimsToString(view.strides()),
                            " under shape ", DimsToString(view.shape()),
                            "; what is written should not overlap itself"));
  }
}

void OperandChecker::CheckContiguous(std::string_view name,
                                     const ConstTensorView& view,
                                     std::string_view what) {
  if (!view.IsContiguous()) {
    Fail(name, absl::StrCat("has strides ", DimsToString(view.strides()),
                            " under shape ", DimsToString(view.shape()), "; ",
                            what, " should be contiguous"));
  }
}

void OperandChecker::RecordRead(const ConstTensorView& view) {
  if (records_) accesses_.push_back(ReadsFrom(view));
}

void OperandChecker::RecordWrite(const TensorView& view) {
  if (records_) accesses_.push_back(WritesTo(view));
}

void OperandChecker::Fail(std::string_view name, std::string_view message) {
  Requires(false, absl::StrCat("\"", name, "\" ", message, "."));
}

}  // namespace tessera
