#include "tools/train/predict/activations/pool_replay.h"

#include <algorithm>
#include <bit>

namespace tessera::train {
namespace {

// Whole eighths of the power of two below, and whole cache lines.
int64_t BlockOf(int64_t bytes) {
  const auto size = static_cast<uint64_t>(bytes);
  const auto step = std::max<uint64_t>(64, std::bit_floor(size) / 8);
  return static_cast<int64_t>((size + step - 1) / step * step);
}

}  // namespace

void PoolReplay::Reserve(int64_t bytes, Slot& slot) {
  slot.held = true;
  if (slot.block >= bytes) return;
  Release(slot);
  slot.held = true;
  slot.block = BlockOf(bytes);
  taken_ += slot.block;
  peak_ = std::max(peak_, taken_);
  Blocks& blocks = blocks_[slot.block];
  blocks.most = std::max(blocks.most, ++blocks.now);
}

void PoolReplay::Release(Slot& slot) {
  slot.held = false;
  if (slot.block == 0) return;
  taken_ -= slot.block;
  --blocks_[slot.block].now;
  slot.block = 0;
}

void PoolReplay::ResetPeaks() {
  peak_ = taken_;
  for (auto& [size, blocks] : blocks_) blocks.most = blocks.now;
}

}  // namespace tessera::train
