// Real limits: the process's resident bytes fall, an address space that the
// kernel bounds is not exceeded, and a control group kills no one.
//
// The control group is made inside of the directory that the environment
// variable TESSERA_TEST_CGROUP names (version 2 with the memory controller
// delegated, or version 1); without it that test is skipped, as no test takes
// a machine's control groups into its own hands.
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/pressure/pressure_controller.h"
#include "offload/pressure/reading/system_memory.h"
#include "offload/pressure/return_memory.h"
#include "offload/tier/file_tier.h"
#include "offload/tier/host_tier.h"

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
#define SKIP_WITH_SANITIZERS()                                     \
  if (kOwnAllocator) {                                             \
    GTEST_SKIP() << "a sanitizer's allocator keeps freed memory, " \
                    "and its shadow exceeds every limit";          \
  }

std::unique_ptr<FileTier> File() {
  FileTierOptions options;
  options.path = testing::TempDir();
  options.bounce_bytes = 2 * kMiB;
  return *FileTier::Create(std::make_shared<Accounting>("file", kUnlimited),
                           std::move(options));
}

std::vector<std::byte> Block(int index, int64_t bytes) {
  return std::vector<std::byte>(static_cast<size_t>(bytes),
                                static_cast<std::byte>(index % 251 + 1));
}

int64_t Resident() { return SystemMemory().Read()->resident; }

void OffloadAll(int64_t block_bytes, int blocks) {
  HostTier near(std::make_shared<Accounting>("host", kUnlimited));
  const std::unique_ptr<FileTier> far = File();
  for (int i = 0; i < blocks; ++i) {
    TESSERA_ASSERT_OK(near.Put(std::to_string(i), Block(i, block_bytes), {}));
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto controller,
      PressureController::Create({.near = &near,
                                  .far = far.get(),
                                  .source = std::make_shared<SystemMemory>()}));
  const int64_t before = Resident();
  // All but every fourth, which lies between the others.
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const PressureReport report,
      controller->Offload(block_bytes * blocks * 3 / 4));
  TESSERA_EXPECT_OK(report.status);
  EXPECT_GE(report.bytes_moved, block_bytes * blocks * 3 / 4);
  const int64_t after = Resident();
  // The file tier's own staging memory is what may come on top.
  EXPECT_LE(after, before - report.bytes_moved * 9 / 10 + 3 * kMiB)
      << block_bytes << ": " << before << " to " << after;
  EXPECT_LE(report.after.resident, before);
}

TEST(PressureLimitTest, ResidentBytesReallyFall) {
  SKIP_WITH_SANITIZERS();
  // From the heap, mapped, and mapped before and then from the heap.
  for (const int64_t bytes :
       {16 * kMiB / 1024, 64 * kMiB / 1024, kMiB, kMiB, 4 * kMiB}) {
    ASSERT_NO_FATAL_FAILURE(
        OffloadAll(bytes, static_cast<int>(48 * kMiB / bytes)));
  }
}

TEST(PressureLimitTest, FreedMemoryStaysWithoutReturnFreeMemory) {
  SKIP_WITH_SANITIZERS();
  constexpr size_t kBytes = 16 << 10;
  std::vector<std::unique_ptr<char[]>> blocks(8192);
  for (auto& block : blocks) {
    block = std::make_unique<char[]>(kBytes);
    std::fill_n(block.get(), kBytes, 'x');
  }
  const int64_t full = Resident();
  // The last one holds the top of the heap.
  for (size_t i = 0; i + 1 < blocks.size(); ++i) blocks[i].reset();
  const int64_t freed = Resident();
  EXPECT_GT(freed, full - 64 * kMiB);
  EXPECT_TRUE(ReturnFreeMemory());
  EXPECT_LT(Resident(), full - 120 * kMiB);
}

// The exit status of `act` in a child, 99 for a signal.
int InChild(const std::function<int()>& act) {
  const pid_t child = fork();
  if (child == 0) _exit(act());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

// Puts `total` bytes into the host tier, with a Check before each block or
// without, and reads all of them back. 0, or what went wrong.
int Train(int64_t total, bool checks, const std::function<void()>& limit) {
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
  const std::unique_ptr<FileTier> far = File();
  if (!far->Put("warm", Block(0, kMiB), {}).ok()) return 1;
  HostTier near(std::make_shared<Accounting>("host", kUnlimited));
  const auto controller = PressureController::Create(
      {.near = &near,
       .far = far.get(),
       .source = std::make_shared<SystemMemory>(),
       .strategy = PressureStrategy::kConservative,
       .gauge = {.some_stall = 101, .full_stall = 101}});
  limit();
  int64_t moved = 0;
  for (int i = 0; i < total / kMiB; ++i) {
    if (checks) {
      const auto report = (*controller)->Check();
      if (!report.ok() || !report->status.ok()) return 2;
      moved += report->bytes_moved;
    }
    const absl::StatusOr<Buffer> block = Buffer::Allocate(HostMemory(), kMiB);
    if (!block.ok()) return 3;
    std::fill_n(const_cast<std::byte*>(block->data()), kMiB,
                static_cast<std::byte>(i % 251 + 1));
    if (!near.Put(std::to_string(i), block->bytes(), {}).ok()) return 3;
  }
  if (checks && moved == 0) return 4;
  for (int i = 0; i < total / kMiB; ++i) {
    const std::string key = std::to_string(i);
    std::vector<std::byte> block(kMiB);
    const absl::Status got =
        near.Contains(key) ? near.Get(key, block) : far->Get(key, block);
    if (!got.ok() || block != Block(i, kMiB)) return 5;
  }
  return 0;
}

void LimitAddressSpace() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  statm >> pages;
  const auto bytes =
      static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + 96 * kMiB);
  const rlimit limit{bytes, bytes};
  setrlimit(RLIMIT_AS, &limit);
}

TEST(PressureLimitTest, AnAddressSpaceIsNotExceeded) {
  SKIP_WITH_SANITIZERS();
  // Without checks the kernel refuses.
  EXPECT_EQ(InChild([] { return Train(192 * kMiB, false, LimitAddressSpace); }),
            3);
  EXPECT_EQ(InChild([] { return Train(192 * kMiB, true, LimitAddressSpace); }),
            0);
}

class Cgroup {
 public:
  explicit Cgroup(const std::string& parent)
      : path_(parent + "/tessera_test_" + std::to_string(getpid())) {
    std::filesystem::create_directory(path_);
    v2_ = std::filesystem::exists(path_ + "/memory.max");
    limited_ = Write(v2_ ? "memory.max" : "memory.limit_in_bytes",
                     std::to_string(64 * kMiB));
    if (v2_) Write("memory.swap.max", "0");
  }
  ~Cgroup() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  bool limited() const { return limited_; }
  void Join() const { Write("cgroup.procs", std::to_string(getpid())); }

 private:
  bool Write(const std::string& file, const std::string& text) const {
    std::ofstream out(path_ + "/" + file);
    out << text << std::flush;
    return out.good();
  }

  std::string path_;
  bool v2_ = false;
  bool limited_ = false;
};

TEST(PressureLimitTest, AControlGroupKillsNoOne) {
  SKIP_WITH_SANITIZERS();
  const char* const parent = std::getenv("TESSERA_TEST_CGROUP");
  if (parent == nullptr) {
    GTEST_SKIP() << "set TESSERA_TEST_CGROUP to a control group that may have "
                    "children with memory limits";
  }
  const Cgroup group(parent);
  ASSERT_TRUE(group.limited()) << "no memory limit can be set below " << parent;
  const auto join = [&group] { group.Join(); };
  EXPECT_EQ(InChild([&] { return Train(192 * kMiB, false, join); }), 99);
  EXPECT_EQ(InChild([&] { return Train(192 * kMiB, true, join); }), 0);
}

}  // namespace
}  // namespace tessera::offload
