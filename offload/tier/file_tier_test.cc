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

#include <algorithm>
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

#include "absl/time/time.h"
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
FileTierOptions Options(std::string path, bool keep) {
  FileTierOptions options;
  options.path = std::move(path);
  options.keep = keep;
  options.piece_bytes = 4096;
  options.bounce_bytes = 8 * 4096;
  options.space.growth_bytes = 0;
  options.lock_wait = absl::Milliseconds(20);
  return options;
}

std::string FreshPath(const char* name) {
  const std::string path = testing::TempDir() + "/fault." + name;
  std::remove(path.c_str());
  return path;
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
      auto tier,
      FileTier::Create(Budget(), Options(testing::TempDir(), false)));
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
  auto tier = FileTier::Create(Budget(), Options(directory, false));
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
  for (const bool keep : {false, true}) {
    fail = false;
    FileTierOptions options =
        Options(keep ? FreshPath("eio") : testing::TempDir(), keep);
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
    TESSERA_ASSERT_OK_AND_ASSIGN(auto tier,
                                 FileTier::Create(Budget(), options));
    const Bytes old = PatternBytes(20000, 1);
    TESSERA_ASSERT_OK(tier->Put("w", old, {}));
    // The first, a middle and the last write of a Put; 5 is the record's write.
    for (int at = 0; at < (keep ? 6 : 5); ++at) {
      countdown = at;
      fail = true;
      EXPECT_THAT(
          tier->Put("w", PatternBytes(20000, 2), {}),
          StatusIs(absl::StatusCode::kDataLoss,
                   AllOf(HasSubstr("block \"w\""), HasSubstr("at offset"))));
      countdown = at;
      EXPECT_FALSE(tier->Put("new", PatternBytes(20000, 3), {}).ok());
      if (keep) {
        countdown = 0;
        EXPECT_THAT(tier->Drop("w"), StatusIs(absl::StatusCode::kDataLoss,
                                              HasSubstr("drop of block")));
      }
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
}

TEST(FileTierFaultTest, ShortTransfersAreCompleted) {
  std::atomic<uint64_t> calls = 0;
  FileTierOptions options = Options(testing::TempDir(), false);
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
    auto tier = FileTier::Create(Budget(), Options(directory, false));
    if (!tier.ok() || !(*tier)->Put("k", Bytes(100000), {}).ok()) _exit(1);
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(rmdir(directory.c_str()), 0) << "the directory is not empty";
}

TEST(FileTierFaultTest, RejectsBadOptions) {
  FileTierOptions options = Options("", false);
  EXPECT_THAT(FileTier::Create(Budget(), options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("path")));
  options = Options(testing::TempDir(), false);
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
  for (int64_t blocks : {int64_t{0}, int64_t{1} << 40}) {
    options.kept_blocks = blocks;
    EXPECT_THAT(
        FileTier::Create(Budget(), options),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("kept blocks")));
  }
  options.kept_blocks = 64;
  options.queue_depth = 0;
  EXPECT_THAT(
      FileTier::Create(Budget(), options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("queue depth")));
}

}  // namespace

// Persistent files: damaged, truncated, foreign and intact.

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Flips one bit at the last occurrence of `needle` in the file.
void FlipBitOf(const std::string& path, std::span<const std::byte> needle) {
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

TEST(FileTierRecoveryTest, FlippedBitIsDataLoss) {
  const std::string path = FreshPath("flip");
  TESSERA_ASSERT_OK_AND_ASSIGN(auto tier,
                               FileTier::Create(Budget(), Options(path, true)));
  const Bytes bytes = PatternBytes(20000, 1);
  TESSERA_ASSERT_OK(tier->Put("adam.m", bytes, {}));
  TESSERA_ASSERT_OK(tier->Put("adam.v", PatternBytes(20000, 2), {}));
  FlipBitOf(path, std::span(bytes).subspan(8192, 4096));
  Bytes got(20000);
  EXPECT_THAT(tier->Get("adam.m", got),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("block \"adam.m\""),
                             HasSubstr("bytes 8192 to 12288"),
                             HasSubstr("of file " + path))));
  // The rest of the block can still be read.
  got.resize(8192);
  TESSERA_EXPECT_OK(tier->GetRange("adam.m", 0, got));
  EXPECT_EQ(Read(*tier, "adam.v"), PatternBytes(20000, 2));
  // After reopening, this block is known to be lost, and no other.
  tier.reset();
  TESSERA_ASSERT_OK_AND_ASSIGN(tier,
                               FileTier::Create(Budget(), Options(path, true)));
  EXPECT_THAT(tier->recovery().lost, ElementsAre("adam.m"));
  EXPECT_THAT(tier->Keys(), ElementsAre("adam.v"));
}

TEST(FileTierRecoveryTest, TornVersionFallsBackToPrevious) {
  const std::string path = FreshPath("torn");
  const Bytes older = PatternBytes(20000, 1), newer = PatternBytes(20000, 2);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto tier,
                               FileTier::Create(Budget(), Options(path, true)));
  TESSERA_ASSERT_OK(tier->Put("w", older, {}));
  TESSERA_ASSERT_OK(tier->Put("w", newer, {}));
  tier.reset();
  FlipBitOf(path, std::span(newer).first(4096));
  TESSERA_ASSERT_OK_AND_ASSIGN(tier,
                               FileTier::Create(Budget(), Options(path, true)));
  EXPECT_EQ(tier->recovery().older, 1);
  EXPECT_THAT(tier->recovery().lost, IsEmpty());
  EXPECT_EQ(Read(*tier, "w"), older);
  // The next version replaces the damaged one.
  TESSERA_ASSERT_OK(tier->Put("w", PatternBytes(30000, 3), {}));
  tier.reset();
  TESSERA_ASSERT_OK_AND_ASSIGN(tier,
                               FileTier::Create(Budget(), Options(path, true)));
  EXPECT_EQ(tier->recovery().older, 0);
  EXPECT_EQ(Read(*tier, "w"), PatternBytes(30000, 3));
}

TEST(FileTierRecoveryTest, TruncatedFileKeepsIntactBlocks) {
  const std::string path = FreshPath("cut");
  TESSERA_ASSERT_OK_AND_ASSIGN(auto tier,
                               FileTier::Create(Budget(), Options(path, true)));
  for (int i = 0; i < 8; ++i) {
    TESSERA_ASSERT_OK(
        tier->Put("k" + std::to_string(i), PatternBytes(10000, i), {}));
  }
  const int64_t size = tier->file_bytes();
  ASSERT_EQ(truncate(path.c_str(), size - 30000), 0);
  Bytes got(10000);
  EXPECT_THAT(tier->Get("k7", got),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("\"k7\""), HasSubstr("truncated"))));
  tier.reset();
  TESSERA_ASSERT_OK_AND_ASSIGN(tier,
                               FileTier::Create(Budget(), Options(path, true)));
  EXPECT_THAT(tier->recovery().lost, ElementsAre("k5", "k6", "k7"));
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Read(*tier, "k" + std::to_string(i)), PatternBytes(10000, i));
  }
  tier.reset();
  ASSERT_EQ(truncate(path.c_str(), 100000), 0);
  EXPECT_THAT(
      FileTier::Create(Budget(), Options(path, true)),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("has lost its table")));
}

TEST(FileTierRecoveryTest, NeverOverwritesForeignFile) {
  const std::string path = FreshPath("other");
  for (const size_t size : {size_t{20}, size_t{5000}, size_t{100000}}) {
    const Bytes bytes = PatternBytes(size, 1);
    {
      const UniqueFd fd(open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600));
      ASSERT_EQ(write(fd.get(), bytes.data(), size), size);
    }
    EXPECT_THAT(
        FileTier::Create(Budget(), Options(path, true)),
        StatusIs(absl::StatusCode::kDataLoss,
                 AllOf(HasSubstr(path), HasSubstr("not a block file"))));
    Bytes got(size);
    const UniqueFd fd(open(path.c_str(), O_RDONLY));
    EXPECT_EQ(read(fd.get(), got.data(), size), size);
    EXPECT_EQ(got, bytes);
  }
}

TEST(FileTierRecoveryTest, BlocksOfFileWithoutStartDoNotReturn) {
  const std::string path = FreshPath("start");
  TESSERA_ASSERT_OK_AND_ASSIGN(auto tier,
                               FileTier::Create(Budget(), Options(path, true)));
  TESSERA_ASSERT_OK(tier->Put("old", PatternBytes(5000, 1), {}));
  tier.reset();
  const Bytes zeros(8192);
  const UniqueFd fd(open(path.c_str(), O_WRONLY));
  ASSERT_EQ(pwrite(fd.get(), zeros.data(), zeros.size(), 0), 8192);
  for (int i = 0; i < 2; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        tier, FileTier::Create(Budget(), Options(path, true)));
    EXPECT_THAT(tier->Keys(), IsEmpty());
    tier.reset();
  }
}

TEST(FileTierRecoveryTest, NamesFullTableAndReusesSlots) {
  FileTierOptions options = Options(FreshPath("full"), true);
  options.kept_blocks = 2;
  TESSERA_ASSERT_OK_AND_ASSIGN(auto tier, FileTier::Create(Budget(), options));
  for (const char* key : {"a", "b"}) {
    TESSERA_ASSERT_OK(tier->Put(key, PatternBytes(5000, 1), {}));
  }
  EXPECT_THAT(tier->Put("c", PatternBytes(5000, 1), {}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("block \"c\""),
                             HasSubstr("2 blocks, the most"))));
  TESSERA_ASSERT_OK(tier->Drop("a"));
  TESSERA_ASSERT_OK(tier->Put("c", PatternBytes(5000, 3), {}));
  // The size of the table is that of its creation.
  tier.reset();
  options.kept_blocks = 9;
  TESSERA_ASSERT_OK_AND_ASSIGN(tier, FileTier::Create(Budget(), options));
  EXPECT_THAT(tier->Keys(), ElementsAre("b", "c"));
  EXPECT_FALSE(tier->Put("d", PatternBytes(5000, 1), {}).ok());
}

TEST(FileTierRecoveryTest, ReopensKeptFile) {
  const std::string path = FreshPath("kept");
  const BlockInfo info = {Purpose::kOptimizer, DType::kBF16, 77};
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        auto tier, FileTier::Create(Budget(), Options(path, true)));
    for (int i = 0; i < 300; ++i) {
      TESSERA_ASSERT_OK(
          tier->Put("k" + std::to_string(i), PatternBytes(i * 7, i), info));
    }
    for (int i = 0; i < 300; i += 3) {
      TESSERA_ASSERT_OK(tier->Drop("k" + std::to_string(i)));
    }
    EXPECT_THAT(
        FileTier::Create(Budget(), Options(path, true)),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("in use")));
  }
  EXPECT_THAT(FileTier::Create(Budget(1000), Options(path, true)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  TESSERA_ASSERT_OK_AND_ASSIGN(auto tier,
                               FileTier::Create(Budget(), Options(path, true)));
  EXPECT_EQ(tier->recovery().blocks, 200);
  int64_t bytes = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string key = "k" + std::to_string(i);
    ASSERT_EQ(tier->Contains(key), i % 3 != 0) << key;
    if (i % 3 == 0) continue;
    ASSERT_EQ(Read(*tier, key), PatternBytes(i * 7, i));
    EXPECT_EQ(tier->Stat(key)->info, info);
    bytes += i * 7;
  }
  EXPECT_EQ(tier->usage()[0].usage.of(Purpose::kOptimizer).current, bytes);
}

}  // namespace

}  // namespace tessera::offload
