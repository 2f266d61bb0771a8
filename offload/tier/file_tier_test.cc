// Full devices, failing and short transfers: the error names the place, and no
// data is lost.

#include "offload/tier/file_tier.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/os/unique_fd.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/file/testing/fault_engine.h"
#include "offload/tier/testing/tier_model.h"

namespace tessera::offload {

namespace {

using Bytes = std::vector<std::byte>;

std::shared_ptr<Accounting> Budget(int64_t bytes = kUnlimited) {
  return std::make_shared<Accounting>("file", bytes);
}

// Small pieces, and a file no larger than needed.
FileTierOptions Options(std::string path) {
  FileTierOptions options;
  options.path = std::move(path);
  options.piece_bytes = 4096;
  options.bounce_bytes = 8 * 4096;
  options.space.growth_bytes = 0;
  return options;
}

// Empty if the block cannot be read.
Bytes Read(FileTier& tier, const std::string& key) {
  const auto stat = tier.Stat(key);
  if (!stat.ok()) return {};
  Bytes got(static_cast<size_t>(stat->bytes));
  return tier.Get(key, got).ok() ? got : Bytes();
}

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(FileTierFaultTest, NamesFileSizeLimitAndKeepsOldVersion) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto tier, FileTier::Create(Budget(), Options(testing::TempDir())));
  const Bytes old = PatternBytes(50000, 1);
  TESSERA_ASSERT_OK(tier->Put("w", old, {.purpose = Purpose::kParameters}));
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {64 << 10, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status replace = tier->Put("w", PatternBytes(50000, 2), {});
  const absl::Status other = tier->Put("v", PatternBytes(50000, 3), {});
  setrlimit(RLIMIT_FSIZE, &before);
  for (const absl::Status& status : {replace, other}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                 AllOf(HasSubstr("tier file: block"),
                                       HasSubstr("at offset 53248 of file"),
                                       HasSubstr("File too large"))));
  }
  EXPECT_EQ(Read(*tier, "w"), old);
  EXPECT_THAT(tier->Keys(), ElementsAre("w"));
  EXPECT_EQ(tier->usage()[0].usage.current, 50000);
  EXPECT_EQ(tier->usage()[0].usage.of(Purpose::kParameters).current, 50000);
  TESSERA_EXPECT_OK(tier->Put("w", PatternBytes(50000, 2), {}));
  EXPECT_EQ(Read(*tier, "w"), PatternBytes(50000, 2));
}

void WriteText(const char* path, const std::string& text) {
  const UniqueFd fd(open(path, O_WRONLY));
  (void)!write(fd.get(), text.data(), text.size());
}

// Exit codes: 1: success; 2: no tmpfs can be mounted here.
int FillSmallDevice(const std::string& directory) {
  const uid_t user = getuid();
  const gid_t group = getgid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return 2;
  WriteText("/proc/self/uid_map", "0 " + std::to_string(user) + " 1");
  WriteText("/proc/self/setgroups", "deny");
  WriteText("/proc/self/gid_map", "0 " + std::to_string(group) + " 1");
  if (mount("none", directory.c_str(), "tmpfs", 0, "size=256k") != 0) {
    return 2;
  }
  auto tier = FileTier::Create(Budget(), Options(directory));
  if (!tier.ok()) {
    std::fprintf(stderr, "%s\n", tier.status().ToString().c_str());
    return 3;
  }
  int stored = 0;
  absl::Status status;
  while ((status = (*tier)->Put("k" + std::to_string(stored),
                                PatternBytes(30000, stored), {}))
             .ok()) {
    if (++stored > 20) return 4;
  }
  if (!absl::IsResourceExhausted(status)) return 5;
  if (status.message().find("No space left") == std::string::npos) return 6;
  for (int i = 0; i < stored; ++i) {
    if (Read(**tier, "k" + std::to_string(i)) != PatternBytes(30000, i)) {
      return 7;
    }
  }
  // Space is free again after a block is dropped.
  if (!(*tier)->Drop("k0").ok()) return 8;
  return (*tier)->Put("new", PatternBytes(30000, 0), {}).ok() ? 1 : 9;
}

TEST(FileTierFaultTest, NamesFullDeviceAndLosesNothing) {
  const std::string directory = testing::TempDir() + "/small";
  mkdir(directory.c_str(), 0700);
  const pid_t child = fork();
  if (child == 0) _exit(FillSmallDevice(directory));
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "no tmpfs can be mounted";
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

TEST(FileTierFaultTest, KeepsOldVersionOnWriteError) {
  std::atomic<bool> fail = false;
  std::atomic<int> countdown = 0;
  FileTierOptions options = Options(testing::TempDir());
  options.wrap = [&](std::unique_ptr<IoEngine> inner) {
    return std::make_unique<FaultEngine>(
        std::move(inner), [&](const IoRequest& request) {
          FaultEngine::Fault fault;
          if (fail && request.kind == IoRequest::Kind::kWrite &&
              countdown-- <= 0) {
            fault.error = EIO;
          }
          return fault;
        });
  };
  TESSERA_ASSERT_OK_AND_ASSIGN(auto tier, FileTier::Create(Budget(), options));
  const Bytes old = PatternBytes(20000, 1);
  TESSERA_ASSERT_OK(tier->Put("w", old, {}));
  // The first, a middle and the last write of a Put.
  for (int at = 0; at < 5; ++at) {
    countdown = at;
    fail = true;
    EXPECT_THAT(
        tier->Put("w", PatternBytes(20000, 2), {}),
        StatusIs(absl::StatusCode::kDataLoss,
                 AllOf(HasSubstr("block \"w\""), HasSubstr("at offset"))));
    countdown = at;
    EXPECT_FALSE(tier->Put("new", PatternBytes(20000, 3), {}).ok());
    fail = false;
    EXPECT_EQ(Read(*tier, "w"), old);
    EXPECT_THAT(tier->Keys(), ElementsAre("w"));
    EXPECT_EQ(tier->usage()[0].usage.current, 20000);
  }
  // Nothing leaks: a failed Put releases its space.
  const int64_t size = tier->file_bytes();
  for (int i = 0; i < 50; ++i) {
    TESSERA_ASSERT_OK(tier->Put("w", PatternBytes(20000, i), {}));
  }
  EXPECT_EQ(tier->file_bytes(), size);
}

TEST(FileTierFaultTest, ShortTransfersAreCompleted) {
  std::atomic<uint64_t> calls = 0;
  FileTierOptions options = Options(testing::TempDir());
  options.wrap = [&](std::unique_ptr<IoEngine> inner) {
    return std::make_unique<FaultEngine>(
        std::move(inner), [&](const IoRequest&) {
          FaultEngine::Fault fault;
          const uint64_t call = calls++;
          fault.most_bytes = 512 * (1 + call % 7);
          if (call % 11 == 0) fault.error = call % 2 == 0 ? EINTR : EAGAIN;
          return fault;
        });
  };
  TESSERA_ASSERT_OK_AND_ASSIGN(auto tier, FileTier::Create(Budget(), options));
  for (size_t size : {1, 4096, 100001}) {
    TESSERA_ASSERT_OK(tier->Put("w", PatternBytes(size, size), {}));
    EXPECT_EQ(Read(*tier, "w"), PatternBytes(size, size));
  }
  EXPECT_GT(calls, 100u);
}

TEST(FileTierFaultTest, ScratchFileVanishesAfterKill) {
  const std::string directory = testing::TempDir() + "/gone";
  mkdir(directory.c_str(), 0700);
  const pid_t child = fork();
  if (child == 0) {
    auto tier = FileTier::Create(Budget(), Options(directory));
    if (!tier.ok() || !(*tier)->Put("k", Bytes(100000), {}).ok()) _exit(1);
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(rmdir(directory.c_str()), 0) << "the directory is not empty";
}

TEST(FileTierFaultTest, RejectsBadOptions) {
  FileTierOptions options = Options("");
  EXPECT_THAT(FileTier::Create(Budget(), options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("path")));
  options = Options(testing::TempDir());
  for (int64_t piece : {0, 4095, 5000, 2048}) {
    options.piece_bytes = piece;
    EXPECT_THAT(FileTier::Create(Budget(), options),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("a power of two")));
  }
  options.piece_bytes = 4096;
  for (int64_t bounce : {0, 4095, 4097}) {
    options.bounce_bytes = bounce;
    EXPECT_THAT(FileTier::Create(Budget(), options),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("a multiple of the piece size")));
  }
  options.bounce_bytes = 4096;
  options.queue_depth = 0;
  EXPECT_THAT(
      FileTier::Create(Budget(), options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("queue depth")));
}

// Damaged and truncated files.

// Sets `fd` to the descriptor of the file, which has no name, at each request.
absl::StatusOr<std::unique_ptr<FileTier>> OpenTier(std::atomic<int>& fd) {
  FileTierOptions options = Options(testing::TempDir());
  options.wrap = [&fd](std::unique_ptr<IoEngine> inner) {
    return std::make_unique<FaultEngine>(std::move(inner),
                                         [&fd](const IoRequest& request) {
                                           fd = request.fd;
                                           return FaultEngine::Fault();
                                         });
  };
  return FileTier::Create(Budget(), options);
}

// Flips one bit at the last occurrence of `needle` in the file.
void FlipBitOf(int file, std::span<const std::byte> needle) {
  // Opened again, without O_DIRECT.
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  const UniqueFd fd(open(path.c_str(), O_RDWR));
  struct stat info = {};
  fstat(fd.get(), &info);
  Bytes all(static_cast<size_t>(info.st_size));
  ASSERT_EQ(pread(fd.get(), all.data(), all.size(), 0), info.st_size);
  const auto found =
      std::find_end(all.begin(), all.end(), needle.begin(), needle.end());
  ASSERT_NE(found, all.end());
  std::byte flipped = found[5] ^ std::byte{4};
  ASSERT_EQ(pwrite(fd.get(), &flipped, 1, found - all.begin() + 5), 1);
}

TEST(FileTierDamageTest, FlippedBitIsDataLoss) {
  std::atomic<int> fd = -1;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto tier, OpenTier(fd));
  const Bytes bytes = PatternBytes(20000, 1);
  TESSERA_ASSERT_OK(tier->Put("adam.m", bytes, {}));
  TESSERA_ASSERT_OK(tier->Put("adam.v", PatternBytes(20000, 2), {}));
  FlipBitOf(fd, std::span(bytes).subspan(8192, 4096));
  Bytes got(20000);
  EXPECT_THAT(
      tier->Get("adam.m", got),
      StatusIs(
          absl::StatusCode::kDataLoss,
          AllOf(HasSubstr("block \"adam.m\""), HasSubstr("bytes 8192 to 12288"),
                HasSubstr("of file " + testing::TempDir() + "/(scratch)"))));
  // The rest of the block can still be read.
  got.resize(8192);
  TESSERA_EXPECT_OK(tier->GetRange("adam.m", 0, got));
  EXPECT_EQ(Read(*tier, "adam.v"), PatternBytes(20000, 2));
}

TEST(FileTierDamageTest, TruncatedFileKeepsIntactBlocks) {
  std::atomic<int> fd = -1;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto tier, OpenTier(fd));
  for (int i = 0; i < 8; ++i) {
    TESSERA_ASSERT_OK(
        tier->Put("k" + std::to_string(i), PatternBytes(10000, i), {}));
  }
  const int64_t size = tier->file_bytes();
  ASSERT_EQ(ftruncate(fd, size - 30000), 0);
  Bytes got(10000);
  // Some of k5's bytes are left.
  EXPECT_FALSE(tier->Get("k5", got).ok());
  for (const std::string key : {"k6", "k7"}) {
    EXPECT_THAT(
        tier->Get(key, got),
        StatusIs(absl::StatusCode::kDataLoss,
                 AllOf(HasSubstr("\"" + key + "\""), HasSubstr("truncated"))));
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Read(*tier, "k" + std::to_string(i)), PatternBytes(10000, i));
  }
}

}  // namespace

}  // namespace tessera::offload
