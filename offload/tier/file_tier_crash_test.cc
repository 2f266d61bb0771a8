// A child process swaps blocks in a persistent file and is killed by SIGKILL at
// a random moment. After reopening the file, every block must be the version of
// the last completed Put or of the one in progress.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/tier/file_tier.h"
#include "offload/tier/testing/tier_model.h"

namespace tessera::offload {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kKeys = 6;
constexpr uint64_t kDropped = uint64_t{1} << 63;

// Shared with the child, by key: the last completed version and the last one
// begun (with kDropped set if it is a Drop).
struct Progress {
  std::array<std::atomic<uint64_t>, kKeys> certain;
  std::array<std::atomic<uint64_t>, kKeys> begun;
  std::atomic<uint64_t> puts = 0;
};

std::string Key(size_t i) { return "state." + std::to_string(i); }

// A version's bytes and their number.
std::vector<std::byte> VersionBytes(size_t key, uint64_t version) {
  const uint64_t seed = version * kKeys + key;
  return PatternBytes(seed * 7919 % 50000, seed);
}

FileTierOptions Options(const std::string& path, IoEngineKind engine) {
  FileTierOptions options;
  options.path = path;
  options.keep = true;
  options.kept_blocks = 64;
  options.engine = engine;
  options.piece_bytes = 8192;
  options.bounce_bytes = 4 * 8192;
  options.space.growth_bytes = 64 << 10;
  return options;
}

std::unique_ptr<FileTier> Open(const std::string& path, IoEngineKind engine) {
  auto tier = FileTier::Create(std::make_shared<Accounting>("file", kUnlimited),
                               Options(path, engine));
  EXPECT_TRUE(tier.ok()) << tier.status();
  return tier.ok() ? *std::move(tier) : nullptr;
}

// Runs until it is killed.
[[noreturn]] void Swap(const std::string& path, IoEngineKind engine,
                       Progress& progress, uint64_t seed) {
  const std::unique_ptr<FileTier> tier = Open(path, engine);
  std::mt19937_64 random(seed);
  while (true) {
    std::array<size_t, kKeys> keys;
    for (size_t i = 0; i < kKeys; ++i) keys[i] = i;
    std::shuffle(keys.begin(), keys.end(), random);
    std::vector<std::vector<std::byte>> buffers(3);
    std::vector<Operation> puts;
    for (size_t i = 0; i < 3; ++i) {
      const uint64_t version = (progress.begun[keys[i]] & ~kDropped) + 1;
      buffers[i] = VersionBytes(keys[i], version);
      progress.begun[keys[i]] = version;
      ++progress.puts;
      puts.push_back(tier->StartPut(Key(keys[i]), buffers[i], {}));
    }
    for (size_t i = 0; i < 3; ++i) {
      if (!puts[i].Wait().ok()) _exit(3);
      progress.certain[keys[i]] = progress.begun[keys[i]].load();
    }
    const size_t dropped = keys[3];
    if (random() % 4 != 0 || progress.certain[dropped] == 0 ||
        (progress.certain[dropped] & kDropped) != 0) {
      continue;
    }
    progress.begun[dropped] |= kDropped;
    if (!tier->Drop(Key(dropped)).ok()) _exit(4);
    progress.certain[dropped] = progress.begun[dropped].load();
  }
}

// Returns true if `tier` holds this version of the key. 0: never put.
bool Holds(FileTier& tier, size_t key, uint64_t version) {
  const absl::StatusOr<BlockStat> stat = tier.Stat(Key(key));
  if (version == 0 || (version & kDropped) != 0) return !stat.ok();
  const std::vector<std::byte> expected = VersionBytes(key, version);
  if (!stat.ok() || stat->bytes != static_cast<int64_t>(expected.size())) {
    return false;
  }
  std::vector<std::byte> got(expected.size());
  return tier.Get(Key(key), got).ok() && got == expected;
}

// Waits for some Puts, or none (the file is still being opened), then a random
// time.
void AwaitKillPoint(const Progress& progress, std::mt19937_64& random) {
  const uint64_t target =
      progress.puts + (random() % 8 == 0 ? 0 : random() % 40);
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  while (progress.puts < target && Clock::now() < deadline) usleep(200);
  usleep(static_cast<useconds_t>(random() % 3000));
}

class FileTierCrashTest : public testing::TestWithParam<IoEngineKind> {};

TEST_P(FileTierCrashTest, RecoversLastOrInFlightVersion) {
  const std::string path = testing::TempDir() + "/crash." +
                           std::to_string(static_cast<int>(GetParam()));
  std::remove(path.c_str());
  void* memory = mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* progress = new (memory) Progress();
  std::mt19937_64 random(1);
  int newer = 0;
  for (int kill_point = 0; kill_point < 110; ++kill_point) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) Swap(path, GetParam(), *progress, random());
    AwaitKillPoint(*progress, random);
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "exit " << WEXITSTATUS(status);
    const std::unique_ptr<FileTier> tier = Open(path, GetParam());
    ASSERT_NE(tier, nullptr);
    ASSERT_THAT(tier->recovery().lost, testing::IsEmpty());
    for (size_t key = 0; key < kKeys; ++key) {
      const uint64_t certain = progress->certain[key];
      const uint64_t begun = progress->begun[key];
      const bool old_one = Holds(*tier, key, certain);
      const bool new_one = Holds(*tier, key, begun);
      ASSERT_TRUE(old_one || new_one)
          << "kill point " << kill_point << ", key " << key << ", certain "
          << certain << ", begun " << begun;
      // The next child starts from the version found.
      newer += certain != begun && new_one;
      if (!new_one) progress->begun[key] = certain;
      if (new_one) progress->certain[key] = begun;
    }
    // The file does not grow with each crash.
    ASSERT_LT(tier->file_bytes(), 8 << 20);
  }
  EXPECT_GT(progress->puts, 1000u);
  RecordProperty("found_newer", newer);
  munmap(memory, sizeof(Progress));
}

INSTANTIATE_TEST_SUITE_P(Engines, FileTierCrashTest,
                         testing::Values(IoEngineKind::kAuto,
                                         IoEngineKind::kThreads));

}  // namespace
}  // namespace tessera::offload
