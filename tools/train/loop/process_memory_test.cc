#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"
#include "tools/train/loop/memory_watch.h"

namespace tessera::train {
namespace {

constexpr char kStatus[] =
    "Name:\ttrain\nVmPeak:\t  900 kB\nVmHWM:\t   2048 kB\nVmRSS:\t   1024 "
    "kB\nThreads:\t7\n";

TEST(ResidentMemoryTest, ReadsProcessStatus) {
  const ResidentMemory memory = ParseProcessStatus(kStatus);
  EXPECT_EQ(memory.resident, 1024 * 1024);
  EXPECT_EQ(memory.peak_resident, 2048 * 1024);
}

TEST(ResidentMemoryTest, MissingAndInvalidFieldsAreZero) {
  EXPECT_EQ(ParseProcessStatus("").resident, 0);
  EXPECT_EQ(ParseProcessStatus("VmRSS:\t12 MB\nVmHWM: x kB").resident, 0);
  EXPECT_EQ(ParseProcessStatus("VmRSS: -5 kB").resident, 0);
  EXPECT_EQ(ParseProcessStatus("VmRSS: 99999999999999999 kB").resident, 0);
}

TEST(ResidentMemoryTest, AnyTextIsRead) {
  TextMutator mutator({kStatus}, {"VmRSS:", "VmHWM:", " kB", "9"}, 3);
  for (int i = 0; i < 20'000; ++i) {
    EXPECT_GE(ParseProcessStatus(mutator.Next()).resident, 0);
  }
}

TEST(ResidentMemoryTest, ThisProcessGrows) {
  const int64_t before = ReadResidentMemory().resident;
  EXPECT_GT(before, 0);
  const std::vector<char> more(32 << 20, 'x');
  const ResidentMemory after = ReadResidentMemory();
  EXPECT_GT(after.resident, before + (24 << 20));
  EXPECT_GE(after.peak_resident, after.resident);
}

TEST(ResidentMemoryTest, PeakRestartsOrStays) {
  const int64_t before = ReadResidentMemory().resident;
  // Uses mmap because the heap may keep freed memory.
  constexpr size_t kBytes = 64 << 20;
  void* const more = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(more, MAP_FAILED);
  std::memset(more, 'x', kBytes);
  munmap(more, kBytes);
  EXPECT_GT(ReadResidentMemory().peak_resident, before + (60 << 20));
  const bool restarts = RestartPeakMemory();
  EXPECT_EQ(restarts, access("/proc/self/clear_refs", W_OK) == 0);
  const ResidentMemory after = ReadResidentMemory();
  EXPECT_GE(after.peak_resident, after.resident);
  if (restarts) {
    EXPECT_LT(after.peak_resident, before + (32 << 20));
  }
}

}  // namespace
}  // namespace tessera::train
