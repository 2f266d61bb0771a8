#include "collectives/engine/scratch.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::collectives {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr int64_t kSmallestBlock = 64 << 10;

constexpr int64_t RoundUp(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

void Scratch::Free::operator()(std::byte* memory) const {
  ::operator delete[](memory, kAlignment);
}

absl::StatusOr<std::span<std::byte>> Scratch::Allocate(int64_t bytes) {
  if (bytes < 0 || bytes > int64_t{1} << 60) {
    return absl::InvalidArgumentError(
        absl::StrCat("working memory of ", bytes, " bytes; 0 to 2^60 allowed"));
  }
  const int64_t rounded = RoundUp(bytes);
  // From the fullest that has room, so that a few bytes do not keep the largest
  // block from whoever needs all of it.
  Block* fullest = nullptr;
  for (Block& block : blocks_) {
    if (block.left() < rounded) continue;
    if (fullest == nullptr || block.left() < fullest->left()) fullest = &block;
  }
  if (fullest != nullptr) {
    std::byte* start = fullest->memory.get() + fullest->used;
    fullest->used += rounded;
    return std::span(start, static_cast<size_t>(bytes));
  }
  Block block;
  block.size = std::max(rounded, kSmallestBlock);
  block.memory.reset(static_cast<std::byte*>(::operator new[](
      static_cast<size_t>(block.size), kAlignment, std::nothrow)));
  if (block.memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", bytes, " bytes to work in"));
  }
  block.used = rounded;
  held_bytes_ += block.size;
  blocks_.push_back(std::move(block));
  return std::span(blocks_.back().memory.get(), static_cast<size_t>(bytes));
}

void Scratch::Reset() {
  if (blocks_.empty()) return;
  // The largest first, so that one block serves the next operation.
  std::sort(blocks_.begin(), blocks_.end(),
            [](const Block& a, const Block& b) { return a.size > b.size; });
  int64_t kept = 0;
  std::erase_if(blocks_, [&](const Block& block) {
    if (kept + block.size > kept_bytes_) return true;
    kept += block.size;
    return false;
  });
  held_bytes_ = kept;
  for (Block& block : blocks_) block.used = 0;
}

}  // namespace tessera::collectives
