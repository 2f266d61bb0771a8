#include "tensor_parallel/ops_cpu/operand_checker.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/tensor/layout.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel::cpu {
namespace {

bool IsComputed(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16;
}

}  // namespace

absl::Status OperandChecker::Leads(std::string_view name,
                                   const ConstTensorView& view, int rank) {
  dtype_ = view.dtype();
  if (!IsComputed(dtype_)) {
    Fail(name, absl::StrCat("is of ", DTypeName(dtype_),
                            "; it may be of f64, f32 or bf16: convert it"));
  }
  if (rank >= 0 && view.rank() != rank) {
    Fail(name, absl::StrCat("has shape ", DimsToString(view.shape()),
                            "; it should have ", rank, " dimensions"));
  }
  CheckCommon(name, view);
  return status_;
}

OperandChecker& OperandChecker::Reads(std::string_view name,
                                      const ConstTensorView& view,
                                      std::span<const int64_t> shape) {
  CheckType(name, view.dtype(), dtype_);
  CheckShape(name, view, shape);
  CheckCommon(name, view);
  return *this;
}

OperandChecker& OperandChecker::Writes(std::string_view name,
                                       const TensorView& view,
                                       std::span<const int64_t> shape) {
  Reads(name, view, shape);
  CheckDistinct(name, view);
  return *this;
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
  return *this;
}

OperandChecker& OperandChecker::ReadsStatistics(
    std::string_view name, const ConstTensorView& view,
    std::span<const int64_t> shape) {
  CheckType(name, view.dtype(), StatisticsOf(dtype_));
  CheckShape(name, view, shape);
  CheckCommon(name, view);
  if (!view.IsContiguous()) {
    Fail(name, absl::StrCat("has strides ", DimsToString(view.strides()),
                            " under shape ", DimsToString(view.shape()),
                            "; statistics should be contiguous"));
  }
  return *this;
}

OperandChecker& OperandChecker::WritesStatistics(
    std::string_view name, const TensorView& view,
    std::span<const int64_t> shape) {
  return ReadsStatistics(name, view, shape);
}

OperandChecker& OperandChecker::Counts(std::string_view name, size_t size,
                                       int64_t wanted) {
  if (size != static_cast<size_t>(wanted)) {
    Fail(name, absl::StrCat("has ", size, " numbers; it should have ", wanted,
                            ", one for each row"));
  }
  return *this;
}

OperandChecker& OperandChecker::Requires(bool holds, std::string_view message) {
  if (!holds && status_.ok()) {
    status_ =
        absl::InvalidArgumentError(absl::StrCat(operation_, ": ", message));
  }
  return *this;
}

void OperandChecker::CheckCommon(std::string_view name,
                                 const ConstTensorView& view) {
  if (!IsHostAccessible(view.kind())) {
    Fail(name, absl::StrCat("lies in ", MemoryKindName(view.kind()),
                            " memory, which the CPU cannot reach; copy it to "
                            "the host or use the device's Ops"));
  }
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

void OperandChecker::Fail(std::string_view name, std::string_view message) {
  Requires(false, absl::StrCat("\"", name, "\" ", message, "."));
}

}  // namespace tessera::tensor_parallel::cpu
