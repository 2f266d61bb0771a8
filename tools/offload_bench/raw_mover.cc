#include "tools/offload_bench/raw_mover.h"

#include "absl/strings/str_cat.h"

namespace tessera::offload_bench {

absl::Status CheckRawResult(const RawTransfer& transfer, int64_t offset,
                            int64_t bytes, int64_t result) {
  if (result == bytes) return absl::OkStatus();
  const std::string where =
      absl::StrCat("raw ", transfer.write ? "write" : "read", " of ", bytes,
                   " bytes at offset ", offset);
  if (result < 0) return absl::ErrnoToStatus(static_cast<int>(-result), where);
  return absl::UnavailableError(
      absl::StrCat(where, " moved only ", result, " bytes"));
}

}  // namespace tessera::offload_bench
