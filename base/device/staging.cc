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

absl::StatusOr<std::shared_ptr<StagingPool::Block>> StagingPool::Take(
    size_t bytes) {
  for (const std::shared_ptr<Block>& block : blocks_) {
    if (block.use_count() > 1 || block->memory.size() < bytes) continue;
    TESSERA_ASSIGN_OR_RETURN(const bool done, block->done.Test());
    if (done) return block;
  }
  auto block = std::make_shared<Block>();
  TESSERA_ASSIGN_OR_RETURN(
      block->memory,
      Buffer::Allocate(queue_.device().staging_memory(),
                       std::bit_ceil(std::max<size_t>(bytes, 64))));
  // The smallest that is large enough comes first.
  const auto place = std::find_if(
      blocks_.begin(), blocks_.end(), [&](const std::shared_ptr<Block>& other) {
        return other->memory.size() >= block->memory.size();
      });
  return *blocks_.insert(place, std::move(block));
}

absl::Status StagingPool::Upload(std::span<const std::byte> source,
                                 std::span<std::byte> target,
                                 SourcePlace place) {
  if (queue_.is_immediate()) return queue_.Copy(source, target, place);
  if (source.empty()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Block> block,
                           Take(source.size()));
  const std::span<std::byte> staged = {block->memory.data(), source.size()};
  TESSERA_RETURN_IF_ERROR(
      queue_.device().HostAccess(WritesTo(staged), "write an upload", place));
  std::memcpy(staged.data(), source.data(), source.size());
  TESSERA_RETURN_IF_ERROR(queue_.Copy(staged, target, place));
  TESSERA_ASSIGN_OR_RETURN(block->done, queue_.Record(place));
  return absl::OkStatus();
}

absl::StatusOr<Download> StagingPool::StartDownload(
    std::span<const std::byte> source, SourcePlace place) {
  Download download;
  if (source.empty()) return download;
  TESSERA_ASSIGN_OR_RETURN(download.block_, Take(source.size()));
  Block& block = *download.block_;
  TESSERA_RETURN_IF_ERROR(
      queue_.Copy(source, {block.memory.data(), source.size()}, place));
  TESSERA_ASSIGN_OR_RETURN(block.done, queue_.Record(place));
  download.size_ = source.size();
  download.done_ = block.done;
  download.device_ = &queue_.device();
  return download;
}

}  // namespace tessera
