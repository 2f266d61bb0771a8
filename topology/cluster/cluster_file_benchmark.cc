// Reads and writes a cluster with many different hosts. The floor is one pass
// over the text: `share` is the rate divided by that of a memcpy of the same
// bytes in the same run.
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "topology/cluster/cluster.h"
#include "topology/cluster/cluster_file.h"

namespace tessera::topology {
namespace {

Cluster Unlike(int64_t hosts) {
  std::vector<HostGroup> groups(static_cast<size_t>(hosts));
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i].name = absl::StrCat("host", i);
    groups[i].devices.resize(8);
    for (size_t d = 0; d < 8; ++d) {
      groups[i].devices[d].bus_id = absl::StrCat("0000:", 10 + d, ":00.0");
    }
  }
  return *Cluster::Create(std::move(groups));
}

double MemcpySeconds(const std::string& text) {
  std::string copy(text.size(), '\0');
  constexpr int kTimes = 20;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kTimes; ++i) {
    std::memcpy(copy.data(), text.data(), text.size());
    benchmark::DoNotOptimize(copy.data());
    benchmark::ClobberMemory();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
             .count() /
         kTimes;
}

template <typename Work>
void Measure(benchmark::State& state, const std::string& text, Work work) {
  double spent = 0;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    spent +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
            .count();
  }
  state.SetBytesProcessed(state.iterations() *
                          static_cast<int64_t>(text.size()));
  state.counters["share"] =
      MemcpySeconds(text) / (spent / static_cast<double>(state.iterations()));
}

void Read(benchmark::State& state) {
  const std::string text = ClusterToJson(Unlike(state.range(0)));
  Measure(state, text,
          [&] { benchmark::DoNotOptimize(ClusterFromJson(text)); });
}
BENCHMARK(Read)->Arg(1)->Arg(1000)->Unit(benchmark::kMicrosecond);

void Write(benchmark::State& state) {
  const Cluster cluster = Unlike(state.range(0));
  const std::string text = ClusterToJson(cluster);
  Measure(state, text,
          [&] { benchmark::DoNotOptimize(ClusterToJson(cluster)); });
}
BENCHMARK(Write)->Arg(1)->Arg(1000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tessera::topology
