// Real limits: the process's resident bytes fall, an address space and data
// that the kernel bounds are not exceeded, and a control group kills no one.
//
// The bounds of the process need nothing and are tested everywhere. The control
// group is made inside of the directory that the environment variable
// TESSERA_TEST_CGROUP names (version 2 with the memory controller delegated, or
// version 1), or of this process's own where a manager has handed that over to
// its processes, which the attribute user.delegate tells (version 2, systemd).
// Anywhere else the test is skipped and says why: no test takes somebody else's
// control groups into its own hands.
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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

// 96 MiB more of `resource` than column `column` of statm has now.
void Limit(decltype(RLIMIT_AS) resource, int column) {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  for (int i = 0; i <= column; ++i) statm >> pages;
  const auto bytes =
      static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + 96 * kMiB);
  const rlimit limit{bytes, bytes};
  setrlimit(resource, &limit);
}
void LimitAddressSpace() { Limit(RLIMIT_AS, 0); }
// Column 5 counts stacks too, which are small.
void LimitData() { Limit(RLIMIT_DATA, 5); }

TEST(PressureLimitTest, AnAddressSpaceIsNotExceeded) {
  SKIP_WITH_SANITIZERS();
  // Without checks the kernel refuses.
  EXPECT_EQ(InChild([] { return Train(192 * kMiB, false, LimitAddressSpace); }),
            3);
  EXPECT_EQ(InChild([] { return Train(192 * kMiB, true, LimitAddressSpace); }),
            0);
}

TEST(PressureLimitTest, DataAreNotExceeded) {
  SKIP_WITH_SANITIZERS();
  EXPECT_EQ(InChild([] { return Train(192 * kMiB, false, LimitData); }), 3);
  EXPECT_EQ(InChild([] { return Train(192 * kMiB, true, LimitData); }), 0);
}

// The control group to make another in; else why there is none.
absl::StatusOr<std::string> ParentGroup() {
  const char* const named = std::getenv("TESSERA_TEST_CGROUP");
  if (named != nullptr) return std::string(named);
  const std::string advice =
      "; TESSERA_TEST_CGROUP may name one that may have children with memory "
      "limits";
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line) && !absl::StartsWith(line, "0::/")) {
  }
  const std::string path =
      groups ? "/sys/fs/cgroup" + line.substr(3) : "/sys/fs/cgroup";
  if (!std::filesystem::exists(path + "/cgroup.controllers")) {
    return absl::NotFoundError(absl::StrCat(
        "this process is in no control group of version 2 below /sys/fs/cgroup",
        advice));
  }
  char delegated = '0';
  if (getxattr(path.c_str(), "user.delegate", &delegated, 1) != 1 ||
      delegated != '1') {
    return absl::PermissionDeniedError(absl::StrCat(
        "control group ", path,
        " is not handed over to its processes (user.delegate)", advice));
  }
  return path;
}

class Cgroup {
 public:
  explicit Cgroup(const std::string& parent)
      : path_(parent + "/tessera_test_" + std::to_string(getpid())) {
    std::error_code error;
    if (!std::filesystem::create_directory(path_, error)) {
      why_not_ = absl::StrCat(path_, ": ", error.message());
      return;
    }
    v2_ = std::filesystem::exists(path_ + "/memory.max");
    if (!Write(v2_ ? "memory.max" : "memory.limit_in_bytes",
               std::to_string(64 * kMiB))) {
      why_not_ = absl::StrCat("no memory limit can be set in ", path_);
    }
    if (v2_) Write("memory.swap.max", "0");
  }
  ~Cgroup() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  // Empty where the group limits memory.
  const std::string& why_not() const { return why_not_; }
  void Join() const { Write("cgroup.procs", std::to_string(getpid())); }

 private:
  bool Write(const std::string& file, const std::string& text) const {
    std::ofstream out(path_ + "/" + file);
    out << text << std::flush;
    return out.good();
  }

  std::string path_;
  bool v2_ = false;
  std::string why_not_;
};

TEST(PressureLimitTest, AControlGroupKillsNoOne) {
  SKIP_WITH_SANITIZERS();
  const absl::StatusOr<std::string> parent = ParentGroup();
  if (!parent.ok()) GTEST_SKIP() << parent.status().message();
  const Cgroup group(*parent);
  if (!group.why_not().empty()) {
    // Somebody who names a group expects the test to run.
    ASSERT_EQ(std::getenv("TESSERA_TEST_CGROUP"), nullptr) << group.why_not();
    GTEST_SKIP() << group.why_not();
  }
  const auto join = [&group] { group.Join(); };
  EXPECT_EQ(InChild([&] { return Train(192 * kMiB, false, join); }), 99);
  EXPECT_EQ(InChild([&] { return Train(192 * kMiB, true, join); }), 0);
}

}  // namespace
}  // namespace tessera::offload
