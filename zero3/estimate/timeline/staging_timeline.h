// StagingTimeline: blocks of one kind of state that cannot be used where they
// are (files, compressed tiers) and are brought near, by the rule of
// zero3/state/shards/shard_prefetch.h: the near memory of a tier is there from
// its first block on and is as large as NearBytes says, or as what was in use
// at once.
//
//   NearTimeline near(NearBytes(...), meter);
//   StagingTimeline masters(blocks_by_id, false, meter);
//   masters.Open(3);
//   masters.Close(3);
#ifndef TESSERA_ZERO3_ESTIMATE_TIMELINE_STAGING_TIMELINE_H_
#define TESSERA_ZERO3_ESTIMATE_TIMELINE_STAGING_TIMELINE_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "zero3/estimate/timeline/buffer_meter.h"
#include "zero3/parameters/parameter.h"

namespace tessera::zero3 {

// The near memory of one tier.
class NearTimeline {
 public:
  NearTimeline(int64_t bytes, BufferMeter& meter)
      : bytes_(bytes), meter_(meter) {}

  // A block is in the tier.
  void Create() {
    if (is_there_) return;
    is_there_ = true;
    meter_.Hold(Purpose::kPrefetchBuffers, bytes_);
  }
  void Open(int64_t bytes) {
    in_use_ += bytes;
    if (in_use_ <= bytes_) return;
    meter_.Hold(Purpose::kPrefetchBuffers, in_use_ - bytes_);
    bytes_ = in_use_;
  }
  void Close(int64_t bytes) { in_use_ -= bytes; }

 private:
  int64_t bytes_;
  int64_t in_use_ = 0;
  bool is_there_ = false;
  BufferMeter& meter_;
};

class StagingTimeline {
 public:
  struct Block {
    int64_t bytes = 0;  // 0: used where it is.
    NearTimeline* near = nullptr;
  };

  // By id. What is pointed to and `meter` outlive this.
  StagingTimeline(std::vector<Block> blocks, bool of_values, BufferMeter& meter)
      : blocks_(std::move(blocks)), of_values_(of_values), meter_(meter) {}

  void Open(ParameterId id) {
    const Block& block = BlockOf(id);
    if (block.bytes == 0) return;
    block.near->Open(block.bytes);
    if (of_values_) meter_.HoldValues(block.bytes);
  }
  void Close(ParameterId id) {
    const Block& block = BlockOf(id);
    if (block.bytes == 0) return;
    block.near->Close(block.bytes);
    if (of_values_) meter_.HoldValues(-block.bytes);
  }

 private:
  const Block& BlockOf(ParameterId id) const {
    return blocks_[static_cast<size_t>(id.value())];
  }

  const std::vector<Block> blocks_;
  const bool of_values_;
  BufferMeter& meter_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_ESTIMATE_TIMELINE_STAGING_TIMELINE_H_
