#include "zero3/state/host_copies.h"

#include <cstddef>
#include <utility>

#include "base/status_macros.h"

namespace tessera::zero3 {

absl::Status HostCopies::Allocate(Buffer& buffer, size_t bytes) {
  if (buffer.size() > 0) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(
      buffer,
      Buffer::Allocate(context_.queue().device().staging_memory(), bytes));
  return absl::OkStatus();
}

absl::StatusOr<Event> HostCopies::Download(const offload::ConstTypedSpan& from,
                                           Buffer& target) {
  const auto bytes = static_cast<size_t>(from.size_in_bytes());
  TESSERA_RETURN_IF_ERROR(Allocate(target, bytes));
  TESSERA_ASSIGN_OR_RETURN(auto* const copies, prefetch_->Copies());
  TESSERA_ASSIGN_OR_RETURN(const Event written, context_.queue().Record());
  TESSERA_RETURN_IF_ERROR(copies->down->Wait(written));
  TESSERA_RETURN_IF_ERROR(
      copies->down->Copy({from.data(), bytes}, target.bytes()));
  TESSERA_ASSIGN_OR_RETURN(last_download_, copies->down->Record());
  return last_download_;
}

absl::StatusOr<Event> HostCopies::Upload(const Buffer& from,
                                         const offload::TypedSpan& target) {
  TESSERA_ASSIGN_OR_RETURN(auto* const copies, prefetch_->Copies());
  TESSERA_ASSIGN_OR_RETURN(const Event used, context_.queue().Record());
  TESSERA_RETURN_IF_ERROR(copies->up->Wait(used));
  TESSERA_RETURN_IF_ERROR(copies->up->Copy(
      from.bytes(),
      {target.data(), static_cast<size_t>(target.size_in_bytes())}));
  return copies->up->Record();
}

absl::Status HostCopies::StartDownload(
    ParameterId id, const offload::ConstTypedSpan& gradient) {
  Copy& copy = copies_[id];
  if (std::exchange(copy.is_downloaded, true)) return absl::OkStatus();
  downloads_.push_back(id);
  if (!gradient.empty()) {
    TESSERA_ASSIGN_OR_RETURN(copy.downloaded,
                             Download(gradient, copy.gradient));
    copy.gradient_span = offload::TypedSpan(copy.gradient.data(),
                                            gradient.dtype(), gradient.size());
  }
  const bool has_master = SizeInBytes(context_.model()[id].dtype()) < 4;
  if (has_master || weights_.InTier(id)) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan value,
                           weights_.OpenOwn(id));
  TESSERA_ASSIGN_OR_RETURN(copy.downloaded, Download(value, copy.value));
  return weights_.CloseOwn(id, /*changed=*/false);
}

absl::Status HostCopies::ForgetDownload(ParameterId id) {
  Copy& copy = copies_[id];
  if (!std::exchange(copy.is_downloaded, false)) return absl::OkStatus();
  return context_.queue().Wait(copy.downloaded);
}

absl::Status HostCopies::EndStep() {
  downloads_.clear();
  for (Copy& copy : copies_) copy.is_downloaded = false;
  return context_.queue().Wait(std::exchange(last_download_, {}));
}

absl::StatusOr<offload::TypedSpan> HostCopies::Gradient(ParameterId id) {
  const Copy& copy = copies_[id];
  TESSERA_RETURN_IF_ERROR(copy.downloaded.Wait());
  TESSERA_RETURN_IF_ERROR(context_.queue().device().HostAccess(
      ReadsFrom(copy.gradient.bytes()), "step with a gradient"));
  return copy.gradient_span;
}

absl::StatusOr<offload::TypedSpan> HostCopies::OpenValue(ParameterId id,
                                                         std::string_view why) {
  Device& device = context_.queue().device();
  if (weights_.InTier(id)) {
    TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan value,
                             weights_.OpenOnHost(id));
    TESSERA_RETURN_IF_ERROR(device.HostAccess(
        WritesTo(std::span(value.data(),
                           static_cast<size_t>(value.size_in_bytes()))),
        why));
    return value;
  }
  Copy& copy = copies_[id];
  const DType dtype = context_.model()[id].dtype();
  const int64_t size = context_.OwnExtent(id).size();
  TESSERA_RETURN_IF_ERROR(
      Allocate(copy.value, static_cast<size_t>(size * SizeInBytes(dtype))));
  // Usually a single wait: the gradient depends on the uploaded value, so its
  // download comes after that upload.
  TESSERA_RETURN_IF_ERROR(copy.downloaded.Wait());
  TESSERA_RETURN_IF_ERROR(copy.uploaded.Wait());
  TESSERA_RETURN_IF_ERROR(device.HostAccess(WritesTo(copy.value.bytes()), why));
  return offload::TypedSpan(copy.value.data(), dtype, size);
}

absl::Status HostCopies::CloseValue(ParameterId id) {
  if (weights_.InTier(id)) return weights_.CloseOnHost(id, /*changed=*/true);
  TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan own, weights_.OpenOwn(id));
  Copy& copy = copies_[id];
  TESSERA_ASSIGN_OR_RETURN(copy.uploaded, Upload(copy.value, own));
  return weights_.CloseWritten(id, copy.uploaded);
}

}  // namespace tessera::zero3
