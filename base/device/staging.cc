#include "base/device/staging.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/status_macros.h"

namespace tessera {

absl::StatusOr<std::span<const std::byte>> Download::Wait(
    SourcePlace place) const {
  if (block_ == nullptr) return std::span<const std::byte>();
  TESSERA_RETURN_IF_ERROR(done_.Wait());
  const std::span<const std::byte> bytes = {block_->memory.data(), size_};
  TESSERA_RETURN_IF_ERROR(
      device_->HostAccess(ReadsFrom(bytes), "read a download", place));
  return bytes;
}

absl::StatusOr<std::shared_ptr<StagingBlock>> StagingPool::Take(size_t bytes) {
  for (const std::shared_ptr<StagingBlock>& block : blocks_) {
    if (block.use_count() > 1 || block->memory.size() < bytes) continue;
    TESSERA_ASSIGN_OR_RETURN(const bool done, block->done.Test());
    if (done) return block;
  }
  auto block = std::make_shared<StagingBlock>();
  TESSERA_ASSIGN_OR_RETURN(
      block->memory,
      Buffer::Allocate(queue_.device().staging_memory(),
                       std::bit_ceil(std::max<size_t>(bytes, 64))));
  // The smallest sufficient block comes first.
  const auto place =
      std::find_if(blocks_.begin(), blocks_.end(),
                   [&](const std::shared_ptr<StagingBlock>& other) {
                     return other->memory.size() >= block->memory.size();
                   });
  return *blocks_.insert(place, std::move(block));
}

absl::Status StagingPool::Upload(std::span<const std::byte> source,
                                 std::span<std::byte> target,
                                 SourcePlace place) {
  if (queue_.is_immediate()) return queue_.Copy(source, target, place);
  if (source.empty()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const StagedUpload upload,
                           Stage(source.size(), place));
  std::memcpy(upload.bytes().data(), source.data(), source.size());
  return Send(upload, target, place);
}

absl::StatusOr<StagedUpload> StagingPool::Stage(size_t bytes,
                                                SourcePlace place) {
  StagedUpload upload;
  TESSERA_ASSIGN_OR_RETURN(upload.block_, Take(bytes));
  upload.size_ = bytes;
  TESSERA_RETURN_IF_ERROR(queue_.device().HostAccess(WritesTo(upload.bytes()),
                                                     "write an upload", place));
  return upload;
}

absl::Status StagingPool::Send(const StagedUpload& upload,
                               std::span<std::byte> target, SourcePlace place) {
  TESSERA_RETURN_IF_ERROR(queue_.Copy(upload.bytes(), target, place));
  TESSERA_ASSIGN_OR_RETURN(upload.block_->done, queue_.Record(place));
  return absl::OkStatus();
}

absl::StatusOr<Download> StagingPool::StartDownload(
    std::span<const std::byte> source, SourcePlace place) {
  Download download;
  if (source.empty()) return download;
  TESSERA_ASSIGN_OR_RETURN(download.block_, Take(source.size()));
  StagingBlock& block = *download.block_;
  TESSERA_RETURN_IF_ERROR(
      queue_.Copy(source, {block.memory.data(), source.size()}, place));
  TESSERA_ASSIGN_OR_RETURN(block.done, queue_.Record(place));
  download.size_ = source.size();
  download.done_ = block.done;
  download.device_ = &queue_.device();
  return download;
}

}  // namespace tessera
