#include "collectives/host_memory/place_history.h"

#include <algorithm>
#include <bit>

namespace tessera::collectives::direct {

PlaceHistory::Entry& PlaceHistory::EntryOf(OpKind kind, int64_t bytes) {
  const auto size_class =
      static_cast<size_t>(std::bit_width(static_cast<uint64_t>(bytes) | 1)) - 1;
  return entries_[static_cast<size_t>(kind)][size_class];
}

bool PlaceHistory::Asks(OpKind kind, int64_t bytes) {
  if (bytes >= kLargeBytes) return true;
  Entry& entry = EntryOf(kind, bytes);
  if (entry.left == 0) return true;
  --entry.left;
  return false;
}

void PlaceHistory::Learn(OpKind kind, int64_t bytes, bool enough) {
  if (bytes >= kLargeBytes) return;
  Entry& entry = EntryOf(kind, bytes);
  entry.skips = enough ? uint8_t{0}
                       : static_cast<uint8_t>(
                             std::min<int>(2 * entry.skips + 1, most_skips_));
  entry.left = entry.skips;
}

}  // namespace tessera::collectives::direct
