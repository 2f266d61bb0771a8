#include "tools/cli/typed_flags.h"

#include "base/byte_size.h"

namespace tessera::tools {

absl::StatusOr<std::vector<int64_t>> GrowingSizes(int64_t min_bytes,
                                                  int64_t max_bytes,
                                                  int64_t factor) {
  if (min_bytes > max_bytes) {
    return FlagError(
        "min_bytes", ByteSize(min_bytes).ToString(),
        absl::StrCat("at most --max_bytes=", ByteSize(max_bytes).ToString(),
                     " is allowed"));
  }
  std::vector<int64_t> sizes;
  for (int64_t size = min_bytes; size <= max_bytes; size *= factor) {
    sizes.push_back(size);
  }
  return sizes;
}

}  // namespace tessera::tools
