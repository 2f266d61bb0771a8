// What NearMemory keeps of a block and of a plan. Private to it.
#ifndef TESSERA_OFFLOAD_PREFETCH_NEAR_MEMORY_STATE_H_
#define TESSERA_OFFLOAD_PREFETCH_NEAR_MEMORY_STATE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/tensor/memory.h"
#include "offload/prefetch/near_memory.h"
#include "offload/prefetch/plan/replacement.h"
#include "offload/tier/memory_tier.h"

namespace tessera::offload {

struct NearMemory::Block {
  enum class Place { kFar, kLoading, kNear };

  bool idle() const { return place == Place::kNear && uses == 0 && !storing; }

  std::string key;
  int64_t bytes = 0;
  BlockInfo info;
  Place place = Place::kFar;
  Buffer memory;     // unless it is far
  int64_t uses = 0;  // in use, or waited for
  bool dirty = false;
  bool storing = false;
  bool wanted = false;  // in the queue of stores
  // To be overwritten: neither loaded nor changed since.
  bool undefined = false;
  int64_t announced = -1;  // its number, until it is used
  absl::Status load_error;
  absl::Status store_error;           // of the latest store
  std::vector<int64_t> planned = {};  // its uses in the plan, ascending
  // Uses of the plan that overwrite others and need its room, ascending.
  std::vector<int64_t> gives_way = {};
};

struct NearMemory::Job {
  Block* block = nullptr;
  bool store = false;
  BlockInfo info;  // of a store
};

struct NearMemory::Plan {
  Replacement replacement;
  std::vector<Block*> blocks;     // by number in the replacement
  std::vector<bool> store_after;  // by use
  size_t next_load = 0;           // the use whose load comes next
  int64_t cursor = 0;             // uses that have begun
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PREFETCH_NEAR_MEMORY_STATE_H_
