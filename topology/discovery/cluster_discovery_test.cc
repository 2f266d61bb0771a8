#include "topology/discovery/cluster_discovery.h"

#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "topology/discovery/testing/fake_machine.h"

namespace tessera::topology {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kNone = Device::kNoNvlink;

TEST(NvlinkDomainsTest, CliquesAreDomains) {
  EXPECT_THAT(NvlinkDomains({}), IsEmpty());
  EXPECT_THAT(NvlinkDomains({{false}}), ElementsAre(kNone));
  EXPECT_THAT(NvlinkDomains({{false, true, false, false},
                             {true, false, false, false},
                             {false, false, false, true},
                             {false, false, true, false}}),
              ElementsAre(0, 0, 1, 1));
  // A link that only one end reports, and rows that are too short.
  EXPECT_THAT(NvlinkDomains({{false, true}, {false, false}}),
              ElementsAre(kNone, kNone));
  EXPECT_THAT(NvlinkDomains({{}, {true}}), ElementsAre(kNone, kNone));
}

TEST(NvlinkDomainsTest, DomainsMatchCliquesOfLinks) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    const size_t n = 1 + random() % 8;
    std::vector<std::vector<bool>> linked(n, std::vector<bool>(n));
    for (size_t a = 0; a < n; ++a) {
      for (size_t b = 0; b < a; ++b) {
        linked[a][b] = linked[b][a] = random() % 4 != 0;
      }
    }
    const std::vector<int64_t> domains = NvlinkDomains(linked);
    bool all_linked = true;
    for (size_t a = 0; a < n; ++a) {
      for (size_t b = 0; b < a; ++b) {
        all_linked = all_linked && linked[a][b];
        if (domains[a] != kNone && domains[a] == domains[b]) {
          EXPECT_TRUE(linked[a][b]);
        }
      }
    }
    if (all_linked && n > 1) {
      EXPECT_EQ(domains, std::vector<int64_t>(n, 0));
    }
  }
}

#ifdef TESSERA_HAVE_HWLOC

constexpr char kFakeNvml[] = "topology/discovery/testing/libfake_nvml.so";

DiscoveryOptions Fake() {
  DiscoveryOptions options;
  options.host_name = "fake";
  options.machine = MachineSource::Xml(kFakeMachineXml);
  options.nvml_library = kFakeNvml;
  return options;
}

TEST(ClusterDiscoveryTest, ThisMachineIsAUsableCluster) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const DiscoveredCluster found,
                               DiscoverCluster({}));
  EXPECT_EQ(found.cluster.num_hosts(), 1);
  EXPECT_GE(found.cluster.num_devices(), 1);
  TESSERA_EXPECT_OK(found.cluster.LinkBetween(DeviceIndex(0), DeviceIndex(0)));
}

TEST(ClusterDiscoveryTest, ThisMachinesCoresAreSlots) {
  DiscoveryOptions options;
  options.use_gpus = false;
  options.cpu_slot = CpuSlot::kHardwareThread;
  TESSERA_ASSERT_OK_AND_ASSIGN(const DiscoveredCluster found,
                               DiscoverCluster(options));
  EXPECT_EQ(found.cluster.num_devices(),
            static_cast<int64_t>(found.machine.pus.size()));
}

TEST(ClusterDiscoveryTest, GpusHaveTheirPlaceMemoryAndNvlink) {
  setenv("FAKE_NVML_NVLINK", "pairs", 1);
  TESSERA_ASSERT_OK_AND_ASSIGN(const DiscoveredCluster found,
                               DiscoverCluster(Fake()));
  unsetenv("FAKE_NVML_NVLINK");
  const Cluster& cluster = found.cluster;
  ASSERT_EQ(cluster.num_devices(), 4);
  EXPECT_THAT(cluster.HostName(HostIndex(0)), IsOkAndHolds("fake"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Device gpu,
                               cluster.DeviceAt(DeviceIndex(2)));
  EXPECT_EQ(gpu.kind, DeviceKind::kGpu);
  EXPECT_EQ(gpu.model, "Fake GPU 2");
  EXPECT_EQ(gpu.bus_id, "0000:9a:00.0");
  EXPECT_EQ(gpu.memory_bytes, int64_t{1} << 36);
  EXPECT_EQ(gpu.socket, 1);
  EXPECT_EQ(gpu.numa_node, 1);
  EXPECT_EQ(gpu.nvlink_domain, 1);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Link link, cluster.LinkBetween(DeviceIndex(0), DeviceIndex(1)));
  EXPECT_EQ(link.level, LinkLevel::kNvlink);
  // The bandwidth of the GPU with the fewest links.
  EXPECT_EQ(link.speed.bandwidth, 250e9);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Link far, cluster.LinkBetween(DeviceIndex(1), DeviceIndex(2)));
  EXPECT_EQ(far.level, LinkLevel::kHost);
  EXPECT_THAT(found.notes, ElementsAre(AllOf(HasSubstr("0000:c0:00.0"),
                                             HasSubstr("0 is assumed"))));
}

TEST(ClusterDiscoveryTest, FindsGpusOnBusWithoutNvml) {
  DiscoveryOptions options = Fake();
  options.nvml_library = "libno-such-nvml.so";
  TESSERA_ASSERT_OK_AND_ASSIGN(DiscoveredCluster found,
                               DiscoverCluster(options));
  ASSERT_EQ(found.cluster.num_devices(), 4);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Device gpu,
                               found.cluster.DeviceAt(DeviceIndex(2)));
  EXPECT_EQ(gpu.model, "GH100");
  EXPECT_EQ(gpu.numa_node, 1);
  EXPECT_EQ(gpu.nvlink_domain, kNone);
  ASSERT_THAT(found.notes, SizeIs(2));
  EXPECT_THAT(found.notes[0], AllOf(HasSubstr("libno-such-nvml.so"),
                                    HasSubstr("NVLink are not known")));
  options.nvml_library = "";
  TESSERA_ASSERT_OK_AND_ASSIGN(found, DiscoverCluster(options));
  EXPECT_EQ(found.cluster.num_devices(), 4);
  EXPECT_THAT(found.notes, SizeIs(1));
}

TEST(ClusterDiscoveryTest, AMachineOfCpusHasASlotForEachCoreOrThread) {
  DiscoveryOptions options;
  options.host_name = "cpu";
  options.nvml_library = "";
  options.machine =
      MachineSource::Synthetic("package:2 [numa(memory=64GB)] core:4 pu:2");
  TESSERA_ASSERT_OK_AND_ASSIGN(DiscoveredCluster found,
                               DiscoverCluster(options));
  EXPECT_EQ(found.cluster.num_devices(), 8);
  EXPECT_EQ(found.cluster.groups()[0].links, CpuLinks());
  TESSERA_ASSERT_OK_AND_ASSIGN(const Device slot,
                               found.cluster.DeviceAt(DeviceIndex(5)));
  EXPECT_EQ(slot.kind, DeviceKind::kCpu);
  EXPECT_EQ(slot.socket, 1);
  EXPECT_EQ(slot.memory_bytes, 16'000'000'000);
  EXPECT_THAT(found.notes, IsEmpty());
  options.cpu_slot = CpuSlot::kHardwareThread;
  TESSERA_ASSERT_OK_AND_ASSIGN(found, DiscoverCluster(options));
  EXPECT_EQ(found.cluster.num_devices(), 16);
}

TEST(ClusterDiscoveryTest, RanksShareCores) {
  DiscoveryOptions options;
  options.nvml_library = "";
  options.machine =
      MachineSource::Synthetic("package:2 [numa(memory=60GB)] core:1 pu:1");
  const std::vector<std::pair<int64_t, int64_t>> slots_of_ranks = {
      {0, 2}, {2, 2}, {3, 4}, {5, 6}, {32, 32}, {33, 2}};
  for (const auto& [ranks, slots] : slots_of_ranks) {
    options.ranks = ranks;
    TESSERA_ASSERT_OK_AND_ASSIGN(const DiscoveredCluster found,
                                 DiscoverCluster(options));
    const std::vector<Device>& devices = found.cluster.groups()[0].devices;
    ASSERT_EQ(devices.size(), slots) << ranks;
    EXPECT_EQ(devices[0].memory_bytes, 60'000'000'000 / (slots / 2));
    EXPECT_EQ(devices[slots / 2 - 1].socket, 0);
    EXPECT_EQ(devices[slots / 2].socket, 1);
    EXPECT_EQ(found.notes.size(), slots == 2 ? 0 : 1);
  }
}

TEST(ClusterDiscoveryTest, CanIgnoreGpus) {
  DiscoveryOptions options = Fake();
  options.use_gpus = false;
  TESSERA_ASSERT_OK_AND_ASSIGN(const DiscoveredCluster found,
                               DiscoverCluster(options));
  EXPECT_EQ(found.cluster.num_devices(), 2);
  EXPECT_EQ(found.cluster.groups()[0].devices[0].kind, DeviceKind::kCpu);
}

TEST(ClusterDiscoveryTest, SanitizesHostName) {
  DiscoveryOptions options = Fake();
  options.host_name = "my host/1";
  TESSERA_ASSERT_OK_AND_ASSIGN(DiscoveredCluster found,
                               DiscoverCluster(options));
  EXPECT_THAT(found.cluster.HostName(HostIndex(0)), IsOkAndHolds("my-host-1"));
  options.host_name = std::string(1000, 'x');
  TESSERA_ASSERT_OK_AND_ASSIGN(found, DiscoverCluster(options));
  EXPECT_THAT(found.cluster.HostName(HostIndex(0)),
              IsOkAndHolds(std::string(253, 'x')));
}

TEST(ClusterDiscoveryTest, RejectsUnreadableMachine) {
  DiscoveryOptions options = Fake();
  options.machine = MachineSource::Xml("no XML");
  EXPECT_THAT(DiscoverCluster(options),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

#else

TEST(ClusterDiscoveryTest, NamesMissingDependency) {
  EXPECT_THAT(DiscoverCluster({}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("hwloc")));
}

#endif  // TESSERA_HAVE_HWLOC

}  // namespace
}  // namespace tessera::topology
