// NearBytes: how much memory a rank sets aside for offloaded shards that its
// processor cannot reach where they are, beside the ones in use: enough for the
// optimizer to step one parameter while the next is read and the one before is
// written, and for the gathers to find as many shards as are to be read ahead.
#ifndef TESSERA_ZERO3_LAYOUT_NEAR_BYTES_H_
#define TESSERA_ZERO3_LAYOUT_NEAR_BYTES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::zero3 {

// Of one slot, what is offloaded: the value, and all that the optimizer has
// open at once (value, gradient, master weight, moments).
struct OffloadedBytes {
  int64_t value = 0;
  int64_t update = 0;
};

// The largest sum of `updates` slots in a row, or of `values` values in a row.
// Preconditions: both are at least 1.
inline int64_t NearBytes(std::span<const OffloadedBytes> by_slot,
                         int64_t updates, int64_t values) {
  int64_t most = 0, update_sum = 0, value_sum = 0;
  for (size_t i = 0; i < by_slot.size(); ++i) {
    update_sum += by_slot[i].update;
    value_sum += by_slot[i].value;
    const auto leaves = [i](int64_t length) {
      return i - static_cast<size_t>(length);
    };
    if (i >= static_cast<size_t>(updates)) {
      update_sum -= by_slot[leaves(updates)].update;
    }
    if (i >= static_cast<size_t>(values)) {
      value_sum -= by_slot[leaves(values)].value;
    }
    most = std::max({most, update_sum, value_sum});
  }
  return most;
}

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_LAYOUT_NEAR_BYTES_H_
