#include "collectives/host_memory/call.h"

#include <algorithm>

#include "collectives/operation/blocks.h"

namespace tessera::collectives::host_memory {

ByteRange LineSlice(int64_t bytes, int64_t ranks, int64_t i) {
  constexpr int64_t kLine = 64;
  const Blocks lines = Blocks::Balanced(ranks, (bytes + kLine - 1) / kLine);
  return {std::min(bytes, lines.offset(i) * kLine),
          std::min(bytes, lines.offset(i + 1) * kLine)};
}

void Move(std::byte* to, const std::byte* from, int64_t bytes, StoreMode mode) {
  if (to != from) CopyBytes(to, from, bytes, mode);
}

}  // namespace tessera::collectives::host_memory
