#include "base/device/transfer.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/device/cuda_memory.h"
#include "base/status_macros.h"
#include "base/tensor/copy.h"

namespace tessera {
namespace {

absl::Status CheckDeviceSide(const ConstTensorView& view) {
  if (IsHostAccessible(view.kind()) || view.IsContiguous()) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      absl::StrCat("transfer of a ", MemoryKindName(view.kind()),
                   " view of shape ", DimsToString(view.shape()),
                   " with strides ", DimsToString(view.strides()),
                   "; on the device only contiguous views can be transferred"));
}

absl::Status CopyContiguous(const ConstTensorView& source,
                            const TensorView& target) {
  return CudaCopyBytes(target.data(), source.data(),
                       static_cast<size_t>(source.size_in_bytes()));
}

absl::Status CopyToDevice(const ConstTensorView& source,
                          const TensorView& target) {
  if (source.IsContiguous()) return CopyContiguous(source, target);
  TESSERA_ASSIGN_OR_RETURN(Tensor packed,
                           Tensor::Create(source.dtype(), source.shape()));
  TESSERA_RETURN_IF_ERROR(Copy(source, packed.view()));
  return CopyContiguous(packed.view(), target);
}

absl::Status CopyFromDevice(const ConstTensorView& source,
                            const TensorView& target) {
  if (target.IsContiguous()) return CopyContiguous(source, target);
  TESSERA_ASSIGN_OR_RETURN(Tensor packed,
                           Tensor::Create(source.dtype(), source.shape()));
  TESSERA_RETURN_IF_ERROR(CopyContiguous(source, packed.view()));
  return Copy(packed.view(), target);
}

absl::Status CheckTransfer(const ConstTensorView& source,
                           const TensorView& target) {
  if (source.dtype() != target.dtype() || source.shape() != target.shape()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "transfer of shape ", DimsToString(source.shape()), " of ",
        DTypeName(source.dtype()), " to shape ", DimsToString(target.shape()),
        " of ", DTypeName(target.dtype()), "; they must be the same"));
  }
  if (!target.layout().HasDistinctElements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("target of shape ", DimsToString(target.shape()),
                     " with strides ", DimsToString(target.strides()),
                     " has several indices for one element"));
  }
  TESSERA_RETURN_IF_ERROR(CheckDeviceSide(source));
  return CheckDeviceSide(target);
}

}  // namespace

absl::Status Transfer(ConstTensorView source, TensorView target) {
  TESSERA_RETURN_IF_ERROR(CheckTransfer(source, target));
  const bool from_host = IsHostAccessible(source.kind());
  const bool to_host = IsHostAccessible(target.kind());
  if (from_host && to_host) return Copy(source, target);
  if (from_host) return CopyToDevice(source, target);
  if (to_host) return CopyFromDevice(source, target);
  return CopyContiguous(source, target);
}

absl::StatusOr<Tensor> Transfer(ConstTensorView source,
                                std::shared_ptr<MemoryResource> resource) {
  TESSERA_ASSIGN_OR_RETURN(
      Tensor target,
      Tensor::Create(source.dtype(), source.shape(), std::move(resource)));
  TESSERA_RETURN_IF_ERROR(Transfer(source, target.view()));
  return target;
}

}  // namespace tessera
