// Measures rank mappings in ns per rank, and group listing, on a mesh of a
// million ranks.
//
// The floor of a mapping is its chain of dependent divisions, one per axis.
// DivisionChain measures it in the same run; `floor_share` is the floor divided
// by the time of the mapping.

#include <chrono>
#include <cstdint>
#include <vector>

#include "benchmark/benchmark.h"
#include "topology/mesh.h"

namespace tessera::topology {
namespace {

constexpr int64_t kRanks = int64_t{8} * 4 * 2 * 16384;

Mesh MillionRanks() { return *Mesh::Create(*ParseAxes("tp8,cp4,pp2,dp16384")); }

// Divides `offset` by every size of the mesh in turn and keeps the remainders.
int64_t DivideByAll(int64_t offset, const std::vector<int64_t>& sizes) {
  int64_t sum = 0;
  for (const int64_t size : sizes) {
    sum += offset % size;
    offset /= size;
  }
  return sum;
}

double DivisionChainSeconds() {
  std::vector<int64_t> sizes = {8, 4, 2, 16384};
  benchmark::DoNotOptimize(sizes.data());
  const auto begin = std::chrono::steady_clock::now();
  int64_t sum = 0;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    sum += DivideByAll(rank, sizes);
  }
  benchmark::DoNotOptimize(sum);
  const std::chrono::duration<double> time =
      std::chrono::steady_clock::now() - begin;
  return time.count() / static_cast<double>(kRanks);
}

// Times the benchmark's loop and reports the time per rank.
class RankTimer {
 public:
  RankTimer(benchmark::State& state, int64_t ranks_per_iteration)
      : state_(state),
        ranks_per_iteration_(static_cast<double>(ranks_per_iteration)),
        floor_(DivisionChainSeconds()),
        begin_(std::chrono::steady_clock::now()) {}

  ~RankTimer() {
    const std::chrono::duration<double> time =
        std::chrono::steady_clock::now() - begin_;
    const double per_rank =
        time.count() /
        (static_cast<double>(state_.iterations()) * ranks_per_iteration_);
    state_.counters["ns_per_rank"] = per_rank * 1e9;
    state_.counters["floor_share"] = floor_ / per_rank;
  }

 private:
  benchmark::State& state_;
  double ranks_per_iteration_;
  double floor_;
  std::chrono::steady_clock::time_point begin_;
};

void BM_CoordinatesOf(benchmark::State& state) {
  const Mesh mesh = MillionRanks();
  const RankTimer timer(state, 4096);
  for (auto _ : state) {
    for (int64_t rank = 0; rank < 4096; ++rank) {
      benchmark::DoNotOptimize(mesh.CoordinatesOf(Rank(rank * 255)));
    }
  }
}
BENCHMARK(BM_CoordinatesOf);

void BM_RankAt(benchmark::State& state) {
  const Mesh mesh = MillionRanks();
  const std::vector<int64_t> coordinates = {7, 3, 1, 12345};
  const RankTimer timer(state, 4096);
  for (auto _ : state) {
    for (int i = 0; i < 4096; ++i) {
      benchmark::DoNotOptimize(mesh.RankAt(coordinates));
    }
  }
}
BENCHMARK(BM_RankAt);

void BM_GroupOf(benchmark::State& state) {
  const Groups groups = *MillionRanks().GroupsAlong("cp,dp");
  const RankTimer timer(state, 4096);
  for (auto _ : state) {
    for (int64_t rank = 0; rank < 4096; ++rank) {
      benchmark::DoNotOptimize(groups.GroupOf(Rank(rank * 255)));
    }
  }
}
BENCHMARK(BM_GroupOf);

void BM_NextInRing(benchmark::State& state) {
  const Groups groups = *MillionRanks().GroupsAlong("dp");
  const RankTimer timer(state, 4096);
  for (auto _ : state) {
    for (int64_t rank = 0; rank < 4096; ++rank) {
      benchmark::DoNotOptimize(
          groups.Shift(Rank(rank * 255), 1, Boundary::kCyclic));
    }
  }
}
BENCHMARK(BM_NextInRing);

void BM_GroupsAlong(benchmark::State& state) {
  const Mesh mesh = MillionRanks();
  for (auto _ : state) {
    benchmark::DoNotOptimize(mesh.GroupsAlong("cp,dp"));
  }
}
BENCHMARK(BM_GroupsAlong);

// All groups of a million ranks; the argument selects small or large groups.
void BM_ListAllGroups(benchmark::State& state) {
  const Mesh mesh = MillionRanks();
  const char* const axes[] = {"pp", "tp", "dp"};
  const Groups groups = *mesh.GroupsAlong(axes[state.range(0)]);
  const RankTimer timer(state, kRanks);
  for (auto _ : state) {
    benchmark::DoNotOptimize(groups.All());
  }
  state.SetLabel(axes[state.range(0)]);
}
BENCHMARK(BM_ListAllGroups)->DenseRange(0, 2)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tessera::topology
