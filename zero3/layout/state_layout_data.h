// What a StateLayout holds; for its own sources only.
#ifndef TESSERA_ZERO3_LAYOUT_STATE_LAYOUT_DATA_H_
#define TESSERA_ZERO3_LAYOUT_STATE_LAYOUT_DATA_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "topology/rank.h"
#include "zero3/layout/layout_options.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/model_parameters.h"

namespace tessera::zero3 {

// The slots of one rank, or of each rank alike, in the order of offsets.
struct StateLayout::Slots {
  std::vector<ParameterId> parameters;
  std::vector<int64_t> offsets;
  LocalRange all;
  LocalRange trainable;
  LocalRange sharded;
};

struct StateLayout::State {
  ModelParameters model;
  LayoutOptions options;
  // By id: the size of a slot, its offset, and the owner of a whole parameter.
  std::vector<int64_t> slot_sizes;
  std::vector<int64_t> slot_offsets;
  std::vector<topology::Rank> owners;
  // By rank; a single one that serves all with kChunks.
  std::vector<Slots> slots;
  int64_t padded_elements = 0;

  bool in_chunks() const { return options.kind == LayoutKind::kChunks; }
  bool IsSmall(const Parameter& parameter) const {
    return parameter.elements < options.small_below;
  }
};

namespace layout_internal {

inline size_t Index(ParameterId id) { return static_cast<size_t>(id.value()); }

inline int64_t CeilDivide(int64_t a, int64_t b) {
  return a / b + (a % b == 0 ? 0 : 1);
}

}  // namespace layout_internal
}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_LAYOUT_STATE_LAYOUT_DATA_H_
