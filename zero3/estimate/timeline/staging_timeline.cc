#include "zero3/estimate/timeline/staging_timeline.h"

namespace tessera::zero3 {

StagingTimeline::StagingTimeline(std::vector<int64_t> bytes,
                                 size_t writes_behind, bool of_values,
                                 BufferMeter& meter)
    : writes_behind_(writes_behind), of_values_(of_values), meter_(meter) {
  blocks_.resize(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) blocks_[i].bytes = bytes[i];
}

void StagingTimeline::Buffer(Block& block) {
  if (block.bytes == 0 || block.is_buffered) return;
  block.is_buffered = true;
  meter_.Hold(Purpose::kPrefetchBuffers, block.bytes, of_values_);
}

void StagingTimeline::Free(Block& block) {
  if (!block.is_buffered) return;
  block.is_buffered = false;
  meter_.Hold(Purpose::kPrefetchBuffers, -block.bytes, of_values_);
}

void StagingTimeline::Open(ParameterId id) {
  Block& block = BlockOf(id);
  block.is_changed = false;
  block.is_open = true;
  Buffer(block);
}

void StagingTimeline::Close(ParameterId id, bool changed) {
  Block& block = BlockOf(id);
  if (block.bytes == 0) return;
  block.is_open = false;
  if (!changed) return Free(block);
  block.is_changed = true;
  writing_.push_back(id);
  LimitWrites(writes_behind_);
}

void StagingTimeline::LimitWrites(size_t most) {
  while (writing_.size() > most) {
    Block& block = BlockOf(writing_.front());
    writing_.pop_front();
    if (!block.is_changed || block.is_open) continue;
    block.is_changed = false;
    Free(block);
  }
}

}  // namespace tessera::zero3
