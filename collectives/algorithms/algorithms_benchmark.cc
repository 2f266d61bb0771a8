// Algorithms over the in_process engine's messages: by algorithm, ranks, size
// and chunk size.
//
// "floor" is the time of the slowest rank's BytesOnWire as plain copies, all
// ranks at once, at the bandwidth measured in the same run; "of_floor" is the
// floor divided by the measured time. The floor does not include reductions.

#include <algorithm>
#include <barrier>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"
#include "collectives/algorithms/run_algorithm.h"
#include "collectives/algorithms/testing/traffic_formulas.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/operation_context.h"
#include "collectives/in_process/in_process.h"

namespace tessera::collectives {
namespace {

constexpr int kRepeats = 4;
constexpr int64_t kPatienceNs = 30'000'000'000;

double SecondsSince(int64_t begin) {
  return static_cast<double>(MonotonicNanos() - begin) * 1e-9;
}

// Seconds for all ranks to copy `bytes` each.
double CopySeconds(int64_t ranks, int64_t bytes) {
  std::vector<double> seconds(static_cast<size_t>(ranks));
  std::barrier start(ranks);
  std::vector<std::thread> threads;
  for (double& mine : seconds) {
    threads.emplace_back([&start, &mine, bytes] {
      std::vector<char> from(static_cast<size_t>(bytes), 1);
      std::vector<char> to(static_cast<size_t>(bytes), 2);
      start.arrive_and_wait();
      const int64_t begin = MonotonicNanos();
      for (int i = 0; i < kRepeats; ++i) {
        std::memcpy(to.data(), from.data(), from.size());
        benchmark::ClobberMemory();
      }
      mine = SecondsSince(begin) / kRepeats;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(seconds.begin(), seconds.end());
}

// Seconds of one operation on the slowest rank, the mean of kRepeats.
double OperationSeconds(std::vector<std::unique_ptr<Engine>>& engines,
                        const TrafficQuestion& question, int64_t chunk_bytes,
                        uint64_t& sequence) {
  const auto ranks = static_cast<int64_t>(engines.size());
  std::vector<double> seconds(engines.size());
  std::barrier start(ranks);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < engines.size(); ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<float> in(static_cast<size_t>(question.bytes / 4), 1);
      std::vector<float> out(in.size());
      Operation operation = AllReduceOf(ConstBuffer(std::span<float>(in)),
                                        Buffer(std::span<float>(out)), {});
      operation.kind = question.kind;
      Scratch scratch;
      start.arrive_and_wait();
      const int64_t begin = MonotonicNanos();
      for (uint64_t i = 0; i < kRepeats; ++i) {
        OperationContext context(
            SignatureOf(operation, ranks, 1, sequence + i, question.algorithm),
            MonotonicNanos() + kPatienceNs, scratch);
        engines[rank]->Enter(context);
        const absl::Status status = RunAlgorithm(
            question.algorithm, operation, *engines[rank]->transport(),
            {.chunk_bytes = chunk_bytes}, context);
        engines[rank]->Leave(context);
        if (!status.ok()) return;
        scratch.Reset();
      }
      seconds[rank] = SecondsSince(begin) / kRepeats;
    });
  }
  for (std::thread& thread : threads) thread.join();
  sequence += kRepeats;
  const auto [least, most] =
      std::minmax_element(seconds.begin(), seconds.end());
  return *least > 0 ? *most : -1;
}

// Arguments: algorithm, kind, ranks, bytes, chunk bytes.
void BM_Algorithm(benchmark::State& state) {
  const TrafficQuestion question = {static_cast<Algorithm>(state.range(0)),
                                    static_cast<OpKind>(state.range(1)),
                                    state.range(3), state.range(2)};
  const int64_t chunk_bytes = state.range(4);
  state.SetLabel(std::string(AlgorithmName(question.algorithm)) + " " +
                 std::string(OpKindName(question.kind)));
  auto engines = CreateInProcessEngines(question.ranks);
  if (!engines.ok()) return state.SkipWithError("no engines");
  uint64_t sequence = 1;
  double total = 0;
  for (auto _ : state) {
    const double seconds =
        OperationSeconds(*engines, question, chunk_bytes, sequence);
    if (seconds < 0) return state.SkipWithError("an operation failed");
    state.SetIterationTime(seconds);
    total += seconds;
  }
  const double mean = total / static_cast<double>(state.iterations());
  const int64_t wire = BytesOnWire(question);
  const double floor = CopySeconds(question.ranks, std::max<int64_t>(1, wire));
  state.counters["floor_us"] = floor * 1e6;
  state.counters["of_floor"] = floor / mean;
}

void Arguments(benchmark::internal::Benchmark* b) {
  for (int64_t chunk : {32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20}) {
    for (Algorithm algorithm :
         {Algorithm::kRing, Algorithm::kTree, Algorithm::kHalvingDoubling,
          Algorithm::kChain}) {
      b->Args({static_cast<int64_t>(algorithm),
               static_cast<int64_t>(OpKind::kAllReduce), 2, 16 << 20, chunk});
      b->Args({static_cast<int64_t>(algorithm),
               static_cast<int64_t>(OpKind::kAllReduce), 4, 16 << 20, chunk});
    }
  }
  for (int64_t bytes : {64, 4096, 65536}) {
    for (Algorithm algorithm :
         {Algorithm::kRing, Algorithm::kTree, Algorithm::kRecursiveDoubling,
          Algorithm::kHalvingDoubling, Algorithm::kPairwise}) {
      b->Args({static_cast<int64_t>(algorithm),
               static_cast<int64_t>(OpKind::kAllReduce), 2, bytes,
               kDefaultChunkBytes});
    }
  }
}

BENCHMARK(BM_Algorithm)
    ->Apply(Arguments)
    ->ArgNames({"algorithm", "kind", "ranks", "bytes", "chunk"})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tessera::collectives
