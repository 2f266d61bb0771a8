// Steps over a file tier in which compute takes as long as loads.
//
// share_of_bound: StepBound, at the bandwidth that the tier alone reached in
// this run, divided by the time of the step. speedup: the time of the same step
// without prefetch divided by the time with prefetch; 2 if only the bandwidth
// limits both. Compute is a pass over the block, repeated for the time of its
// load.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "benchmark/benchmark.h"
#include "offload/prefetch/load_bound.h"
#include "offload/prefetch/prefetcher.h"
#include "offload/tier/file_tier.h"

namespace tessera::offload {
namespace {

constexpr int kBlocks = 48;
constexpr int kNear = 12;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

absl::StatusOr<std::unique_ptr<FileTier>> MakeFile(int64_t bytes) {
  const char* const directory = std::getenv("TMPDIR");
  FileTierOptions options;
  options.path = directory == nullptr ? "/tmp" : directory;
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<FileTier> file,
      FileTier::Create(std::make_shared<Accounting>("file", kUnlimited),
                       std::move(options)));
  const std::vector<std::byte> block(static_cast<size_t>(bytes), std::byte{7});
  for (int i = 0; i < kBlocks; ++i) {
    TESSERA_RETURN_IF_ERROR(file->Put(std::to_string(i), block, {}));
  }
  return file;
}

// The best of three passes over all blocks with kNear in flight.
absl::StatusOr<int64_t> RawBandwidth(FileTier& file, int64_t bytes) {
  std::vector<Buffer> buffers;
  for (int i = 0; i < kNear; ++i) {
    TESSERA_ASSIGN_OR_RETURN(
        Buffer buffer,
        Buffer::Allocate(HostMemory(), static_cast<size_t>(bytes), 4096));
    buffers.push_back(std::move(buffer));
  }
  int64_t best_ns = INT64_MAX;
  for (int pass = 0; pass < 3; ++pass) {
    const int64_t start = NowNs();
    std::vector<Operation> loads(kNear);
    for (int i = 0; i < kBlocks; ++i) {
      const auto slot = static_cast<size_t>(i % kNear);
      TESSERA_RETURN_IF_ERROR(loads[slot].Wait());
      loads[slot] = file.StartGet(std::to_string(i), buffers[slot].bytes());
    }
    for (const Operation& load : loads) TESSERA_RETURN_IF_ERROR(load.Wait());
    best_ns = std::min(best_ns, NowNs() - start);
  }
  return kBlocks * bytes * 1'000'000'000 / best_ns;
}

void Compute(std::span<const std::byte> block, int64_t ns) {
  const int64_t end = NowNs() + ns;
  uint64_t sum = 0;
  while (NowNs() < end) {
    for (size_t i = 0; i < block.size() && i < 65536; ++i) {
      sum += std::to_integer<uint64_t>(block[i]);
    }
  }
  benchmark::DoNotOptimize(sum);
}

absl::StatusOr<StepReport> RunStep(Prefetcher& prefetcher, int64_t ns) {
  TESSERA_RETURN_IF_ERROR(prefetcher.BeginStep());
  for (int i = 0; i < kBlocks; ++i) {
    const std::string key = std::to_string(i);
    TESSERA_ASSIGN_OR_RETURN(const auto block, prefetcher.Use(key));
    Compute(block, ns);
    TESSERA_RETURN_IF_ERROR(prefetcher.Done(key));
  }
  return prefetcher.EndStep();
}

absl::Status RunSteps(benchmark::State& state) {
  const int64_t bytes = state.range(0);
  TESSERA_ASSIGN_OR_RETURN(const auto file, MakeFile(bytes));
  TESSERA_ASSIGN_OR_RETURN(const int64_t raw, RawBandwidth(*file, bytes));
  PrefetchOptions options;
  options.budget = kNear * bytes;
  options.load_bytes_per_second = raw;
  TESSERA_ASSIGN_OR_RETURN(const auto with, Prefetcher::Create(*file, options));
  options.prefetch = false;
  TESSERA_ASSIGN_OR_RETURN(const auto without,
                           Prefetcher::Create(*file, options));
  const int64_t compute = TransferNs(bytes, raw);
  // Records the order.
  for (int i = 0; i < 3; ++i) {
    TESSERA_RETURN_IF_ERROR(RunStep(*with, compute).status());
  }
  StepReport step;
  double share = 0, fast = 0, slow = 0, best = 0;
  for (auto _ : state) {
    TESSERA_ASSIGN_OR_RETURN(step, RunStep(*with, compute));
    TESSERA_ASSIGN_OR_RETURN(const StepReport other,
                             RunStep(*without, compute));
    state.SetIterationTime(static_cast<double>(step.step_ns) * 1e-9);
    share += step.share_of_bound();
    best = std::max(best, step.share_of_bound());
    fast += static_cast<double>(step.step_ns);
    slow += static_cast<double>(other.step_ns);
  }
  state.counters["share_of_bound"] =
      share / static_cast<double>(state.iterations());
  state.counters["best_share"] = best;
  state.counters["speedup"] = slow / fast;
  state.counters["loads"] =
      static_cast<double>(step.bytes_loaded) / static_cast<double>(bytes);
  state.counters["raw_GBps"] = static_cast<double>(raw) * 1e-9;
  return absl::OkStatus();
}

void BM_Step(benchmark::State& state) {
  const absl::Status status = RunSteps(state);
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}
BENCHMARK(BM_Step)
    ->ArgName("block_bytes")
    ->Arg(256 << 10)
    ->Arg(1 << 20)
    ->Arg(4 << 20)
    ->UseManualTime()
    ->Iterations(5)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tessera::offload
