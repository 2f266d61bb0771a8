#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "offload/pressure/pressure_gauge.h"
#include "offload/pressure/system_memory.h"

namespace tessera::offload {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kOwnAllocator = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kOwnAllocator = true;
#else
constexpr bool kOwnAllocator = false;
#endif
#else
constexpr bool kOwnAllocator = false;
#endif

int64_t Resident() { return SystemMemory().Read()->resident; }

TEST(ReturnMemoryTest, FreedMemoryStaysResidentUntilReturned) {
  if (kOwnAllocator) {
    GTEST_SKIP() << "a sanitizer's allocator keeps freed memory";
  }
  constexpr size_t kBytes = 16 << 10;
  std::vector<std::unique_ptr<char[]>> blocks(8192);
  for (auto& block : blocks) {
    block = std::make_unique<char[]>(kBytes);
    std::fill_n(block.get(), kBytes, 'x');
  }
  const int64_t full = Resident();
  // The last block stays at the top of the heap.
  for (size_t i = 0; i + 1 < blocks.size(); ++i) blocks[i].reset();
  const int64_t freed = Resident();
  EXPECT_GT(freed, full - 64 * kMiB);
  EXPECT_TRUE(ReturnFreeMemory());
  EXPECT_LT(Resident(), full - 120 * kMiB);
}

}  // namespace
}  // namespace tessera::offload
