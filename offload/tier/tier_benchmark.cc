// Tiers compared with the floor below them, which is measured after every pass
// of the tier; counters use medians.
//
// File tier: share_of_device is its bandwidth divided by the bandwidth of pread
// and pwrite of the same pieces with O_DIRECT (cached: through the page cache)
// by 8 threads on the same file system. Host tier: share_of_memcpy. Names:
// direction, engine, cache; the argument is the bytes of a block.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/arithmetic.h"
#include "base/os/unique_fd.h"
#include "base/tensor/memory.h"
#include "benchmark/benchmark.h"
#include "offload/tier/file_tier.h"
#include "offload/tier/host_tier.h"

namespace tessera::offload {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPiece = 1 << 20;
constexpr int kDepth = 8;
constexpr int kBlocks = 4;

std::string Directory() {
  const char* chosen = std::getenv("TEST_TMPDIR");
  return chosen != nullptr ? chosen : ".";
}

double SecondsOf(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Alternates passes of a tier and of its floor, each of `bytes` bytes.
class Pairs {
 public:
  explicit Pairs(size_t bytes) : bytes_(static_cast<double>(bytes)) {}

  void Run(benchmark::State& state, const std::function<void()>& tier,
           const std::function<void()>& floor) {
    tier_.push_back(SecondsOf(tier));
    state.SetIterationTime(tier_.back());
    floor_.push_back(SecondsOf(floor));
  }

  void Report(benchmark::State& state, const std::string& floor) const {
    const double tier_rate = bytes_ / Median(tier_);
    const double floor_rate = bytes_ / Median(floor_);
    state.counters["GB/s"] = tier_rate / 1e9;
    state.counters[floor + "_GB/s"] = floor_rate / 1e9;
    state.counters["share_of_" + floor] = tier_rate / floor_rate;
  }

 private:
  const double bytes_;
  std::vector<double> tier_, floor_;
};

// A separate file, and the threads that move its pieces.
class RawDevice {
 public:
  RawDevice(size_t bytes, bool direct)
      : fd_(open(Directory().c_str(),
                 O_TMPFILE | O_RDWR | (direct ? O_DIRECT : 0), 0600)),
        memory_(*Buffer::Allocate(HostMemory(), bytes, 4096)) {
    std::fill_n(memory_.data(), bytes, std::byte{1});
    if (fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes)) != 0) return;
    Move(true);  // Extents that were never written read faster.
  }

  // Moves all bytes once.
  void Move(bool write) {
    std::atomic<size_t> next = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < kDepth; ++t) {
      threads.emplace_back([&] {
        for (size_t at = kPiece * next++; at < memory_.size();
             at = kPiece * next++) {
          const size_t bytes = std::min(kPiece, memory_.size() - at);
          const auto offset = static_cast<off_t>(at);
          const ssize_t moved =
              write ? pwrite(fd_.get(), memory_.data() + at, bytes, offset)
                    : pread(fd_.get(), memory_.data() + at, bytes, offset);
          if (moved < 0) return;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  const UniqueFd fd_;
  Buffer memory_;
};

std::unique_ptr<FileTier> OpenTier(benchmark::State& state, IoEngineKind engine,
                                   bool direct) {
  FileTierOptions options;
  options.path = Directory();
  options.direct = direct;
  options.engine = engine;
  auto tier = FileTier::Create(std::make_shared<Accounting>("file", kUnlimited),
                               options);
  if (!tier.ok()) {
    state.SkipWithError(tier.status().ToString().c_str());
    return nullptr;
  }
  if (direct && !(*tier)->direct()) state.SetLabel("no O_DIRECT here");
  return *std::move(tier);
}

// `shift`: offset of the caller's memory from the device's alignment.
void BM_File(benchmark::State& state, bool write, IoEngineKind engine,
             bool direct, size_t shift) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const auto tier = OpenTier(state, engine, direct);
  if (tier == nullptr) return;
  Buffer memory =
      *Buffer::Allocate(HostMemory(), kBlocks * (bytes + 4096), 4096);
  std::fill_n(memory.data(), memory.size(), std::byte{1});
  const auto block = [&](int i) {
    return memory.bytes().subspan(i * (bytes + 4096) + shift, bytes);
  };
  const auto run = [&](bool put) {
    std::vector<Operation> operations;
    for (int i = 0; i < kBlocks; ++i) {
      const std::string key = std::to_string(i);
      operations.push_back(put ? tier->StartPut(key, block(i), {})
                               : tier->StartGet(key, block(i)));
    }
    for (const Operation& operation : operations) {
      if (!operation.Wait().ok()) state.SkipWithError("failed");
    }
  };
  run(true);
  run(true);  // Both versions' extents have been written.
  RawDevice device(kBlocks * bytes, direct);
  Pairs pairs(kBlocks * bytes);
  for (auto _ : state) {
    pairs.Run(
        state, [&] { run(write); }, [&] { device.Move(write); });
  }
  pairs.Report(state, "device");
}

void BM_Host(benchmark::State& state, bool write) {
  const auto bytes = static_cast<size_t>(state.range(0));
  HostTier tier(std::make_shared<Accounting>("host", kUnlimited));
  std::vector<std::byte> block(bytes, std::byte{1}), other(bytes);
  if (!tier.Put("k", block, {}).ok()) return;
  Pairs pairs(bytes);
  for (auto _ : state) {
    pairs.Run(
        state,
        [&] {
          const absl::Status status =
              write ? tier.Put("k", block, {}) : tier.Get("k", block);
          if (!status.ok()) state.SkipWithError("failed");
        },
        [&] {
          std::memcpy(other.data(), block.data(), bytes);
          benchmark::ClobberMemory();
        });
  }
  pairs.Report(state, "memcpy");
}

BENCHMARK_CAPTURE(BM_Host, put, true)
    ->Arg(64 << 10)
    ->Arg(16 << 20)
    ->UseManualTime();
BENCHMARK_CAPTURE(BM_Host, get, false)
    ->Arg(64 << 10)
    ->Arg(16 << 20)
    ->UseManualTime();

constexpr auto kUring = IoEngineKind::kIoUring;
constexpr auto kThreads = IoEngineKind::kThreads;

BENCHMARK_CAPTURE(BM_File, put_uring_direct, true, kUring, true, 0)
    ->Arg(1 << 20)
    ->Arg(32 << 20)
    ->UseManualTime();
BENCHMARK_CAPTURE(BM_File, get_uring_direct, false, kUring, true, 0)
    ->Arg(1 << 20)
    ->Arg(32 << 20)
    ->UseManualTime();
BENCHMARK_CAPTURE(BM_File, put_uring_direct_bounced, true, kUring, true, 64)
    ->Arg(32 << 20)
    ->UseManualTime();
BENCHMARK_CAPTURE(BM_File, get_uring_direct_bounced, false, kUring, true, 64)
    ->Arg(32 << 20)
    ->UseManualTime();
BENCHMARK_CAPTURE(BM_File, put_threads_direct, true, kThreads, true, 0)
    ->Arg(32 << 20)
    ->UseManualTime();
BENCHMARK_CAPTURE(BM_File, get_threads_direct, false, kThreads, true, 0)
    ->Arg(32 << 20)
    ->UseManualTime();
BENCHMARK_CAPTURE(BM_File, put_uring_cached, true, kUring, false, 0)
    ->Arg(32 << 20)
    ->UseManualTime();
BENCHMARK_CAPTURE(BM_File, get_uring_cached, false, kUring, false, 0)
    ->Arg(32 << 20)
    ->UseManualTime();

}  // namespace
}  // namespace tessera::offload
