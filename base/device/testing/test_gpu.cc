#include "base/device/testing/test_gpu.h"

#include <cstdint>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {

absl::StatusOr<size_t> TestArenaBytes() {
  const char* const text = std::getenv("TESSERA_TEST_ARENA_BYTES");
  if (text == nullptr) return size_t{1} << 30;
  uint64_t bytes = 0;
  if (!absl::SimpleAtoi(text, &bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "TESSERA_TEST_ARENA_BYTES is \"", text,
        "\"; it should be a number of bytes, such as 1073741824, or 0 for an "
        "allocation for each request"));
  }
  return bytes;
}

absl::StatusOr<std::shared_ptr<CudaDevice>> CreateTestGpu() {
  TESSERA_ASSIGN_OR_RETURN(const size_t bytes, TestArenaBytes());
  auto device = CudaDevice::Create({.arena_bytes = bytes});
  if (absl::IsUnimplemented(device.status())) {
    return absl::UnavailableError(device.status().message());
  }
  return device;
}

}  // namespace tessera
