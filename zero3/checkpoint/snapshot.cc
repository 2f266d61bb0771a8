#include "zero3/checkpoint/snapshot.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace tessera::zero3 {

absl::StatusOr<Snapshot> Snapshot::Take(
    ShardedState& state, std::vector<BlockRange> blocks,
    std::shared_ptr<offload::Accounting> accounting) {
  if (accounting == nullptr) {
    accounting =
        std::make_shared<offload::Accounting>("snapshots", offload::kUnlimited);
  }
  int64_t bytes = 0;
  for (const BlockRange& range : blocks) bytes += range.bytes();
  Snapshot snapshot;
  TESSERA_ASSIGN_OR_RETURN(
      snapshot.memory_,
      AccountedMemory::Allocate(std::move(accounting), "checkpoint snapshot",
                                bytes, offload::Purpose::kBuffers));
  std::byte* at = snapshot.memory_.bytes().data();
  TESSERA_RETURN_IF_ERROR(ReadBlocks(
      state, blocks, [&](const BlockRange&, std::span<const std::byte> block) {
        at = std::copy(block.begin(), block.end(), at);
        return absl::OkStatus();
      }));
  snapshot.blocks_ = std::move(blocks);
  return snapshot;
}

absl::Status Snapshot::ForEachBlock(BlockUse use) const {
  size_t at = 0;
  for (const BlockRange& range : blocks_) {
    const auto size = static_cast<size_t>(range.bytes());
    TESSERA_RETURN_IF_ERROR(use(range, memory_.bytes().subspan(at, size)));
    at += size;
  }
  return absl::OkStatus();
}

}  // namespace tessera::zero3
