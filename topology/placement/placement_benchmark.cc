// Measures the search for a placement. The floor is one visit of every rank of
// every axis (two locations and one link each). `floor_s` is the time of such a
// loop in the same run, and `share` is its share of the search time.
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "topology/cluster/cluster.h"
#include "topology/cluster/cluster_file.h"
#include "topology/mesh.h"
#include "topology/placement/placement.h"
#include "topology/placement/traffic.h"

namespace tessera::topology {
namespace {

std::vector<AxisTraffic> Traffic(const std::string& axes) {
  TransformerShape shape;
  shape.layers = 80;
  shape.hidden = 8192;
  shape.kv_hidden = 1024;
  shape.sequence = 8192;
  shape.micro_batches = 16;
  shape.dense_parameters = 70e9;
  shape.expert_parameters = 300e9;
  return *EstimateTransformerTraffic(*ParseAxes(axes), shape);
}

// Locates each rank and its neighbour and looks up their link, once per axis.
double FloorSeconds(const Placement& placement, const Cluster& cluster) {
  const auto begin = std::chrono::steady_clock::now();
  double latency = 0;
  for (const AxisPlacement& axis : placement.axes) {
    for (int64_t rank = 0; rank < placement.world_size; ++rank) {
      const int64_t next = (rank + axis.stride) % placement.world_size;
      latency += cluster.LinkBetween(DeviceIndex(rank), DeviceIndex(next))
                     ->speed.latency;
    }
  }
  benchmark::DoNotOptimize(latency);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

void Place(benchmark::State& state, const Cluster& cluster,
           const std::string& axes) {
  const std::vector<AxisTraffic> traffic = Traffic(axes);
  double searching = 0;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    benchmark::DoNotOptimize(FindPlacement(traffic, cluster));
    searching +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
            .count();
  }
  const Placement placement = *FindPlacement(traffic, cluster);
  const double floor = FloorSeconds(placement, cluster);
  const double search = searching / static_cast<double>(state.iterations());
  state.counters["ranks"] = static_cast<double>(placement.world_size);
  state.counters["floor_s"] = floor;
  state.counters["share"] = floor / search;
}

BENCHMARK_CAPTURE(Place, five_axes_128, *ParseCluster("hosts=16,gpus=8"),
                  "dp2,pp4,cp2,ep2,tp4")
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Place, five_axes_million,
                  *ParseCluster("hosts=125000,gpus=8"),
                  "dp125,pp25,cp8,ep5,tp8")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Place, five_axes_million_racks,
                  *ParseCluster("hosts=250002,gpus=4,nvlink_hosts=18"),
                  "dp125,pp25,cp8,ep5,tp8")
    ->Unit(benchmark::kMillisecond);

// Hosts with 8 devices, and one in a thousand with 7.
Cluster Uneven(int64_t hosts) {
  std::vector<HostGroup> groups(2);
  groups[0].name = "whole";
  groups[0].count = hosts - hosts / 1000;
  groups[0].devices.resize(8);
  groups[1].name = "lame";
  groups[1].count = hosts / 1000;
  groups[1].devices.resize(7);
  for (HostGroup& group : groups) {
    for (Device& device : group.devices) device.nvlink_domain = 0;
  }
  return *Cluster::Create(std::move(groups));
}

BENCHMARK_CAPTURE(Place, five_axes_100k_uneven, Uneven(13000),
                  "dp25,pp25,cp4,ep5,tp8")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Place, five_axes_million_uneven, Uneven(126000),
                  "dp125,pp25,cp8,ep5,tp8")
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tessera::topology
