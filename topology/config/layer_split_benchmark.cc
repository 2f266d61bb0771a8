// Time of SplitByCost over 100,000 layers. Its floor is reading the costs and
// writing their running sums once; "of_floor" is the share of that rate
// reached.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "benchmark/benchmark.h"
#include "topology/config/layer_split.h"

namespace tessera::topology {
namespace {

std::vector<int64_t> RandomCosts(int64_t layers) {
  std::mt19937_64 random(1);
  std::vector<int64_t> costs(layers);
  for (int64_t& cost : costs) cost = static_cast<int64_t>(random() % 1'000'000);
  return costs;
}

// Seconds that the running sums alone take, the best of several rounds.
double FloorSeconds(const std::vector<int64_t>& costs) {
  std::vector<int64_t> sums(costs.size());
  double best = 1e9;
  for (int round = 0; round < 50; ++round) {
    const absl::Time start = absl::Now();
    std::partial_sum(costs.begin(), costs.end(), sums.begin());
    benchmark::DoNotOptimize(sums.data());
    benchmark::ClobberMemory();
    best = std::min(best, absl::ToDoubleSeconds(absl::Now() - start));
  }
  return best;
}

void BM_SplitByCost(benchmark::State& state) {
  const std::vector<int64_t> costs = RandomCosts(state.range(0));
  const double floor = FloorSeconds(costs);
  const absl::Time start = absl::Now();
  for (auto _ : state) {
    benchmark::DoNotOptimize(SplitByCost(costs, state.range(1)));
  }
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start) /
                         static_cast<double>(state.iterations());
  state.counters["floor_us"] = floor * 1e6;
  state.counters["of_floor"] = floor / seconds;
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_SplitByCost)
    ->ArgNames({"layers", "stages"})
    ->Args({100, 8})
    ->Args({100'000, 8})
    ->Args({100'000, 1'000})
    ->Args({100'000, 100'000});

}  // namespace
}  // namespace tessera::topology
