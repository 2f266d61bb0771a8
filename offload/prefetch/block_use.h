// BlockUse: one use of a block in a step, as planning sees it.
//
//   std::vector<BlockUse> order = {
//       {.key = "layer.0", .bytes = 1 << 20, .compute_ns = 300'000},
//       {.key = "layer.1", .bytes = 1 << 20, .compute_ns = 300'000},
//       {.key = "layer.1", .bytes = 1 << 20, .compute_ns = 600'000,
//        .dirty = true}};
#ifndef TESSERA_OFFLOAD_PREFETCH_BLOCK_USE_H_
#define TESSERA_OFFLOAD_PREFETCH_BLOCK_USE_H_

#include <cstdint>
#include <string>

namespace tessera::offload {

struct BlockUse {
  std::string key;
  int64_t bytes = 0;       // at least 0, the same at every use of the key
  int64_t compute_ns = 0;  // from having this block to asking for the next one
  bool dirty = false;      // changed by this use: stored before it is evicted
  int64_t held = 0;        // stays in use through so many uses that follow
  // All of it is written anew: it needs room, and nothing is loaded.
  bool overwrite = false;
  friend bool operator==(const BlockUse&, const BlockUse&) = default;
};

// A block that is in the near memory when a step begins.
struct NearBlock {
  std::string key;
  int64_t bytes = 0;
  bool dirty = false;
  friend bool operator==(const NearBlock&, const NearBlock&) = default;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PREFETCH_BLOCK_USE_H_
