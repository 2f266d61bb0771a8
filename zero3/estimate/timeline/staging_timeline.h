// StagingTimeline: the buffers through which blocks of one kind of state go
// that cannot be used where they are (files, compressed tiers), by the rule of
// zero3/state/shards/shard_store.h.
//
//   StagingTimeline masters(bytes_by_id, /*writes_behind=*/1, false, meter);
//   masters.Announce(4);
//   masters.Open(3);
//   masters.Close(3, /*changed=*/true);
//   masters.Settle();
#ifndef TESSERA_ZERO3_ESTIMATE_TIMELINE_STAGING_TIMELINE_H_
#define TESSERA_ZERO3_ESTIMATE_TIMELINE_STAGING_TIMELINE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "zero3/estimate/timeline/buffer_meter.h"
#include "zero3/parameters/parameter.h"

namespace tessera::zero3 {

class StagingTimeline {
 public:
  // `bytes`, by id, are 0 for what needs no buffer. `meter` outlives this.
  StagingTimeline(std::vector<int64_t> bytes, size_t writes_behind,
                  bool of_values, BufferMeter& meter);

  void Announce(ParameterId id) { Buffer(BlockOf(id)); }
  void Open(ParameterId id);
  void Close(ParameterId id, bool changed);
  void Settle() { LimitWrites(0); }

 private:
  struct Block {
    int64_t bytes = 0;
    bool is_buffered = false;
    bool is_open = false;
    bool is_changed = false;  // And on its way back.
  };

  Block& BlockOf(ParameterId id) {
    return blocks_[static_cast<size_t>(id.value())];
  }
  void Buffer(Block& block);
  void Free(Block& block);
  void LimitWrites(size_t most);

  std::vector<Block> blocks_;
  std::deque<ParameterId> writing_;
  const size_t writes_behind_;
  const bool of_values_;
  BufferMeter& meter_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_ESTIMATE_TIMELINE_STAGING_TIMELINE_H_
