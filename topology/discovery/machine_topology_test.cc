#include "topology/discovery/machine_topology.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "topology/discovery/testing/fake_machine.h"

namespace tessera::topology {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

#ifdef TESSERA_HAVE_HWLOC

TEST(MachineTopologyTest, ThisMachineHasProcessingUnitsAndMemory) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const MachineTopology machine,
      ReadMachineTopology(MachineSource::ThisMachine()));
  EXPECT_GE(machine.sockets, 1);
  ASSERT_FALSE(machine.pus.empty());
  ASSERT_FALSE(machine.numa_nodes.empty());
  EXPECT_GT(machine.numa_nodes[0].memory_bytes, 1 << 20);
  for (const MachinePu& pu : machine.pus) {
    EXPECT_LT(pu.socket, machine.sockets);
    EXPECT_LT(pu.numa_node, static_cast<int64_t>(machine.numa_nodes.size()));
  }
}

TEST(MachineTopologyTest, MatchesSyntheticMachines) {
  for (int sockets = 1; sockets <= 3; ++sockets) {
    for (int numa = 1; numa <= 3; ++numa) {
      for (int cores = 1; cores <= 3; ++cores) {
        for (int threads = 1; threads <= 2; ++threads) {
          const std::string text = "package:" + std::to_string(sockets) +
                                   " group:" + std::to_string(numa) +
                                   " [numa(memory=1GB)]" +
                                   " core:" + std::to_string(cores) +
                                   " pu:" + std::to_string(threads);
          TESSERA_ASSERT_OK_AND_ASSIGN(
              const MachineTopology machine,
              ReadMachineTopology(MachineSource::Synthetic(text)));
          EXPECT_EQ(machine.sockets, sockets) << text;
          ASSERT_THAT(machine.numa_nodes,
                      SizeIs(static_cast<size_t>(sockets * numa)))
              << text;
          const int pus = sockets * numa * cores * threads;
          ASSERT_THAT(machine.pus, SizeIs(static_cast<size_t>(pus))) << text;
          for (int i = 0; i < pus; ++i) {
            const MachinePu& pu = machine.pus[static_cast<size_t>(i)];
            EXPECT_EQ(pu.core, i / threads) << text;
            EXPECT_EQ(pu.numa_node, i / threads / cores) << text;
            EXPECT_EQ(pu.socket, i / threads / cores / numa) << text;
          }
          for (int i = 0; i < sockets * numa; ++i) {
            const MachineNumaNode& node =
                machine.numa_nodes[static_cast<size_t>(i)];
            EXPECT_EQ(node.socket, i / numa) << text;
            EXPECT_EQ(node.memory_bytes, 1'000'000'000) << text;
          }
        }
      }
    }
  }
}

TEST(MachineTopologyTest, FindsNvidiaGpusAndTheirPlaces) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const MachineTopology machine,
      ReadMachineTopology(MachineSource::Xml(kFakeMachineXml)));
  ASSERT_THAT(machine.gpus, SizeIs(4));
  const std::vector<std::string> ids = {"0000:18:00.0", "0000:2a:00.0",
                                        "0000:9a:00.0", "0000:c0:00.0"};
  const std::vector<std::optional<int64_t>> places = {0, 0, 1, std::nullopt};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(machine.gpus[i].bus_id, ids[i]);
    EXPECT_EQ(machine.gpus[i].socket, places[i]);
    EXPECT_EQ(machine.gpus[i].numa_node, places[i]);
    EXPECT_EQ(machine.gpus[i].model, "GH100");
  }
}

TEST(MachineTopologyTest, RejectsInputThatHwlocCannotParse) {
  for (const char* text : {"", "package", "package:0", "banana:2 pu:1", "-"}) {
    EXPECT_THAT(ReadMachineTopology(MachineSource::Synthetic(text)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(std::string("\"") + text + "\""),
                               HasSubstr("hwloc"))))
        << text;
  }
  for (const char* text : {"", "<topology", "no XML", "<a></a>"}) {
    EXPECT_THAT(
        ReadMachineTopology(MachineSource::Xml(text)),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("hwloc")))
        << text;
  }
}

#else

TEST(MachineTopologyTest, NamesMissingDependency) {
  EXPECT_THAT(ReadMachineTopology(MachineSource::Xml(kFakeMachineXml)),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("hwloc's development package"),
                             HasSubstr("libhwloc-dev"))));
}

#endif  // TESSERA_HAVE_HWLOC

}  // namespace
}  // namespace tessera::topology
