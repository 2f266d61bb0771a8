#include "topology/cluster/cluster_file.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::topology {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(UnitsTest, BandwidthsInBytesAndBits) {
  const std::vector<std::pair<std::string, double>> cases = {
      {"450GB", 450e9},     {"450GB/s", 450e9},
      {"450 GBps", 450e9},  {"400Gb", 50e9},
      {"400Gb/s", 50e9},    {"400Gbps", 50e9},
      {"2.5Gb", 312.5e6},   {"1GiB/s", 1 << 30},
      {"1000", 1000},       {"64G", 64.0 * (1 << 30)},
      {" 12.5GB ", 12.5e9}, {"8b", 1},
      {"1e9", 1e9},
  };
  for (const auto& [text, bandwidth] : cases) {
    EXPECT_THAT(ParseBandwidth(text), IsOkAndHolds(bandwidth)) << text;
  }
}

TEST(UnitsTest, RejectsInvalidBandwidths) {
  for (const std::string text :
       {"", "b", "/s", "GB", "0", "0GB", "-1GB", "fast", "1e99", "1GBb", "inf",
        "nan", "99999999999999999999GB", "1GB/s/s"}) {
    EXPECT_THAT(
        ParseBandwidth(text),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("\"" + text + "\""), HasSubstr("400Gb/s"))))
        << text;
  }
}

TEST(UnitsTest, LatenciesAreTheNearestDouble) {
  const std::vector<std::pair<std::string, double>> cases = {
      {"3.4us", 3.4e-6}, {"500ns", 5e-7},   {"1ms", 1e-3},  {"2s", 2},
      {"0us", 0},        {" 14us ", 14e-6}, {".5ms", 5e-4}, {"1000s", 1000},
  };
  for (const auto& [text, latency] : cases) {
    EXPECT_THAT(ParseLatency(text), IsOkAndHolds(latency)) << text;
  }
}

TEST(UnitsTest, RejectsInvalidLatencies) {
  for (const std::string text :
       {"", "us", "5", "-1us", "+1us", "1e-6s", "infs", "nans", "1.2.3us",
        "1001s", "1m", "0x1us", "1 us",
        "00000000000000000000000000000000000000001us"}) {
    EXPECT_THAT(ParseLatency(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("3.4us")))
        << text;
  }
}

TEST(ClusterSpecTest, HostsOfGpus) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Cluster cluster,
                               ParseCluster("hosts=16,gpus=8"));
  EXPECT_EQ(cluster.num_hosts(), 16);
  EXPECT_EQ(cluster.num_devices(), 128);
  ASSERT_EQ(cluster.groups().size(), 1u);
  EXPECT_EQ(cluster.groups()[0].nics, 8);
  EXPECT_EQ(cluster.groups()[0].links, GpuLinks());
  EXPECT_THAT(cluster.HostName(HostIndex(15)), IsOkAndHolds("host15"));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      Link link, cluster.LinkBetween(DeviceIndex(0), DeviceIndex(7)));
  EXPECT_EQ(link.level, LinkLevel::kNvlink);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      link, cluster.LinkBetween(DeviceIndex(7), DeviceIndex(8)));
  EXPECT_EQ(link.level, LinkLevel::kNetwork);
}

TEST(ClusterSpecTest, HostsOfCpusHaveNoNvlink) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Cluster cluster,
                               ParseCluster(" hosts = 2 , cpus = 4 "));
  EXPECT_EQ(cluster.num_devices(), 8);
  EXPECT_EQ(cluster.groups()[0].nics, 1);
  EXPECT_EQ(cluster.groups()[0].links, CpuLinks());
  TESSERA_ASSERT_OK_AND_ASSIGN(const Device device,
                               cluster.DeviceAt(DeviceIndex(3)));
  EXPECT_EQ(device.kind, DeviceKind::kCpu);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Link link, cluster.LinkBetween(DeviceIndex(0), DeviceIndex(3)));
  EXPECT_EQ(link.level, LinkLevel::kNumaNode);
  EXPECT_EQ(link.speed.kind, LinkKind::kSharedMemory);
}

TEST(ClusterSpecTest, EveryKeyHasItsEffect) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Cluster cluster,
      ParseCluster("hosts=4,gpus=8,sockets=2,numa=2,memory=80GB,nvlink=900GB,"
                   "numa_node=64GB,socket=32GB,host=16GB,network=400Gb,nics=2,"
                   "nvlink_hosts=2,name=rack,nvlink_latency=1us,"
                   "numa_node_latency=2us,socket_latency=3us,host_latency=4us,"
                   "network_latency=5us"));
  const HostGroup& group = cluster.groups()[0];
  EXPECT_EQ(group.count, 4);
  EXPECT_EQ(group.name, "rack");
  EXPECT_EQ(group.nics, 2);
  EXPECT_EQ(group.nvlink_hosts, 2);
  const std::map<LinkLevel, std::pair<double, double>> speeds = {
      {LinkLevel::kNvlink, {1e-6, 900e9}}, {LinkLevel::kNumaNode, {2e-6, 64e9}},
      {LinkLevel::kSocket, {3e-6, 32e9}},  {LinkLevel::kHost, {4e-6, 16e9}},
      {LinkLevel::kNetwork, {5e-6, 50e9}},
  };
  for (const auto& [level, speed] : speeds) {
    EXPECT_EQ(LinkAt(group.links, level).latency, speed.first) << level;
    EXPECT_EQ(LinkAt(group.links, level).bandwidth, speed.second) << level;
  }
  ASSERT_EQ(group.devices.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(group.devices[i].numa_node, static_cast<int64_t>(i / 2));
    EXPECT_EQ(group.devices[i].socket, static_cast<int64_t>(i / 4));
    EXPECT_EQ(group.devices[i].memory_bytes, 80'000'000'000);
    EXPECT_EQ(group.devices[i].nvlink_domain, 0);
  }
}

TEST(ClusterSpecTest, SpreadsDevicesEvenly) {
  for (int64_t cpus = 1; cpus <= 12; ++cpus) {
    for (int64_t sockets = 1; sockets <= 4; ++sockets) {
      for (int64_t numa = 1; numa <= 3; ++numa) {
        TESSERA_ASSERT_OK_AND_ASSIGN(
            const Cluster cluster,
            ParseCluster(absl::StrCat("cpus=", cpus, ",sockets=", sockets,
                                      ",numa=", numa)));
        std::vector<int64_t> on_socket(static_cast<size_t>(sockets));
        std::vector<int64_t> on_node(static_cast<size_t>(sockets * numa));
        for (const Device& device : cluster.groups()[0].devices) {
          ++on_socket[static_cast<size_t>(device.socket)];
          ++on_node[static_cast<size_t>(device.numa_node)];
          EXPECT_EQ(device.numa_node / numa, device.socket);
        }
        EXPECT_EQ(cluster.num_devices(), cpus);
        EXPECT_LE(on_socket.front() - on_socket.back(), 1);
        for (int64_t s = 0; s < sockets; ++s) {
          EXPECT_LE(on_node[static_cast<size_t>(s * numa)] -
                        on_node[static_cast<size_t>(s * numa + numa - 1)],
                    1);
        }
      }
    }
  }
}

TEST(ClusterSpecTest, NvlinkNone) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Cluster cluster,
                               ParseCluster("gpus=4,sockets=2,nvlink=none"));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      Link link, cluster.LinkBetween(DeviceIndex(0), DeviceIndex(1)));
  EXPECT_EQ(link.level, LinkLevel::kNumaNode);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      link, cluster.LinkBetween(DeviceIndex(1), DeviceIndex(2)));
  EXPECT_EQ(link.level, LinkLevel::kHost);
}

TEST(ClusterSpecTest, ErrorsNameItemAndAllowedValues) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"", {"is empty"}},
      {" ", {"is empty"}},
      {"hosts=2,gpus=8,", {"item \"\" is not key=value"}},
      {"hosts", {"item \"hosts\" is not key=value"}},
      {"hosts=,gpus=8", {"item \"hosts=\""}},
      {"=2", {"item \"=2\""}},
      {"host5=2,gpus=8",
       {"unknown key \"host5\"", "hosts, gpus, cpus", "network_latency"}},
      {"gpus=8,gpus=8", {"key \"gpus\" is given twice"}},
      {"hosts=2", {"neither gpus nor cpus"}},
      {"gpus=1,cpus=1", {"both gpus and cpus"}},
      {"gpus=0", {"gpus=\"0\" is not a whole number from 1 to 4096"}},
      {"gpus=-1", {"gpus=\"-1\""}},
      {"gpus=4097", {"gpus=\"4097\""}},
      {"gpus=8,hosts=99999999999999999999", {"hosts=\"99999999999999999999\""}},
      {"gpus=8,hosts=1.5", {"hosts=\"1.5\""}},
      {"gpus=8,sockets=0", {"sockets=\"0\""}},
      {"gpus=8,nics=two", {"nics=\"two\"", "1 to 1024"}},
      {"gpus=8,network=fast", {"network: bandwidth \"fast\"", "400Gb/s"}},
      {"gpus=8,network=none", {"network: bandwidth \"none\""}},
      {"gpus=8,nvlink=0", {"nvlink: bandwidth \"0\""}},
      {"gpus=8,host_latency=-1us", {"host_latency: latency \"-1us\""}},
      {"gpus=8,memory=lots", {"memory: byte size \"lots\""}},
      {"gpus=8,name=a b", {"name is not a host name"}},
      {"gpus=4,hosts=36,nvlink_hosts=5", {"nvlink_hosts is 5", "36 hosts"}},
      {"gpus=4096,hosts=1048576", {"devices; use at most 67108864"}},
      {std::string(5000, 'x'), {"5000 characters; use at most 4096"}},
  };
  for (const auto& [spec, parts] : cases) {
    const auto result = ParseCluster(spec);
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument))
        << spec.substr(0, 80);
    for (const std::string& part : parts) {
      EXPECT_THAT(result.status().message(), HasSubstr(part)) << spec;
    }
    EXPECT_LT(result.status().message().size(), 600u) << spec;
  }
}

TEST(ClusterSpecTest, ErrorsShowExample) {
  EXPECT_THAT(ParseCluster("nodes=2"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("cluster spec: "),
                             HasSubstr("for example hosts=16,gpus=8"))));
}

std::string ReadmeExample() {
  std::ifstream file("topology/README.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str();
  const size_t begin = all.find("```json\n");
  const size_t end = all.find("```\n", begin + 8);
  if (begin == std::string::npos || end == std::string::npos) return "";
  return all.substr(begin + 8, end - begin - 8);
}

TEST(ClusterJsonTest, ReadmeExampleMatchesDescription) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Cluster cluster,
                               ClusterFromJson(ReadmeExample()));
  EXPECT_EQ(cluster.num_hosts(), 3);
  EXPECT_EQ(cluster.num_devices(), 32);
  EXPECT_THAT(cluster.HostName(HostIndex(1)), IsOkAndHolds("hgx1"));
  EXPECT_THAT(cluster.HostName(HostIndex(2)), IsOkAndHolds("login"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Device gpu,
                               cluster.DeviceAt(DeviceIndex(12)));
  Device expected;
  expected.model = "H100";
  expected.memory_bytes = int64_t{80} << 30;
  expected.socket = 1;
  expected.numa_node = 1;
  expected.nvlink_domain = 0;
  EXPECT_EQ(gpu, expected);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Link link, cluster.LinkBetween(DeviceIndex(0), DeviceIndex(8)));
  EXPECT_EQ(link.speed, (LinkSpeed{LinkKind::kEthernet, 2e-5, 25e9}));
  // Omitted, so the defaults for each kind of host apply.
  EXPECT_EQ(LinkAt(cluster.groups()[0].links, LinkLevel::kHost),
            LinkAt(GpuLinks(), LinkLevel::kHost));
  EXPECT_EQ(cluster.groups()[1].links, CpuLinks());
  EXPECT_EQ(cluster.groups()[1].nics, 1);
}

std::vector<HostGroup> RandomGroups(std::mt19937_64& random) {
  std::vector<HostGroup> groups(1 + random() % 3);
  std::uniform_real_distribution<double> exponent(-300, 300);
  for (size_t g = 0; g < groups.size(); ++g) {
    HostGroup& group = groups[g];
    group.name = absl::StrCat("h", g, "-");
    group.nvlink_hosts = 1 + static_cast<int64_t>(random() % 5);
    group.count =
        group.nvlink_hosts * (1 + static_cast<int64_t>(random() % 1000));
    group.nics = 1 + static_cast<int64_t>(random() % kMaxNics);
    for (LinkSpeed& link : group.links) {
      link.kind = static_cast<LinkKind>(random() % kLinkKinds);
      link.latency = std::pow(10, exponent(random));
      link.bandwidth = std::pow(10, exponent(random));
    }
    for (size_t n = 1 + random() % 4; n > 0; --n) {
      Device device;
      device.kind = random() % 2 ? DeviceKind::kGpu : DeviceKind::kCpu;
      if (random() % 2) device.model = "A \"quoted\" \\ model";
      if (random() % 2) device.bus_id = "0000:18:00.0";
      device.memory_bytes = static_cast<int64_t>(random() >> 4);
      device.socket = static_cast<int64_t>(random() % 4);
      device.numa_node = static_cast<int64_t>(random() % kMaxDomain);
      device.nvlink_domain = static_cast<int64_t>(random() % 3) - 1;
      group.devices.insert(group.devices.end(), 1 + random() % 4, device);
    }
  }
  return groups;
}

TEST(ClusterJsonTest, RoundTripsBitForBit) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Cluster cluster,
                                 Cluster::Create(RandomGroups(random)));
    const std::string text = ClusterToJson(cluster);
    ASSERT_THAT(ClusterFromJson(text), IsOkAndHolds(cluster)) << text;
  }
}

TEST(ClusterJsonTest, WritesEqualDevicesOnce) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Cluster cluster,
                               ParseCluster("hosts=1000,gpus=8,sockets=2"));
  const std::string text = ClusterToJson(cluster);
  EXPECT_LT(text.size(), 2000u);
  EXPECT_THAT(text, HasSubstr("\"count\": 4"));
  EXPECT_EQ(text.back(), '\n');
}

TEST(ClusterJsonTest, ProblemsAreListedByPath) {
  constexpr char kText[] = R"({
    "format": "other", "version": 2, "extra": 1,
    "hosts": [
      {"name": "a", "devices": [{}]},
      {"name": 7, "count": 0, "nics": 1025, "racks": 1,
       "devices": [{"kind": "tpu"}, {"numa_node": "0", "socket": -1}, 3],
       "links": {"nvlink": {"bandwidth": -1, "latency": "x", "kind": "wire"},
                 "host": 5, "isl": {}}},
      {"devices": {}},
      "b"
    ]})";
  const absl::Status status = ClusterFromJson(kText).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
  for (const char* part :
       {"cluster JSON has 19 problems: ",
        "format is \"other\"; use \"tessera-cluster\"",
        "version is 2; use a whole number from 1 to 1",
        "extra is an unknown key; the keys are format, version, hosts",
        "hosts[1].name is 7; use a text",
        "hosts[1].count is 0; use a whole number from 1 to 1048576",
        "hosts[1].nics is 1025",
        "hosts[1].racks is an unknown key; the keys are name, count",
        "hosts[1].devices[0].kind is \"tpu\"; use \"gpu\" or \"cpu\"",
        "hosts[1].devices[1].numa_node is \"0\"; use a whole number",
        "hosts[1].devices[1].socket is -1",
        "hosts[1].devices[2] is 3; use an object",
        "hosts[1].links.nvlink.bandwidth is -1; use a number",
        "hosts[1].links.nvlink.latency is \"x\"",
        "hosts[1].links.nvlink.kind is \"wire\"; use one of memory, nvlink",
        "hosts[1].links.host is 5; use an object",
        "hosts[1].links.isl is an unknown key; the keys are device, nvlink",
        "hosts[2].name is missing; give a text",
        "hosts[2].devices is an object; use an array",
        "hosts[3] is \"b\"; use an object"}) {
    EXPECT_THAT(status.message(), HasSubstr(part));
  }
}

TEST(ClusterJsonTest, RejectsInvalidDocuments) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "line 1, column 1"},
      {"[]", "the text is an array; use an object"},
      {"{}", "hosts is missing"},
      {R"({"hosts": []})", "the cluster has no host"},
      {R"({"hosts": [{"name": "a"}]})", "hosts[0].devices is empty"},
      {R"({"hosts": [{"name": "a", "devices": []}]})", "devices is empty"},
      {R"({"hosts": [{"name": "a", "devices": [{}]},
                     {"name": "a", "devices": [{}]}]})",
       "hosts[1].name \"a\" names a host that is already named by hosts[0]"},
      {R"({"hosts": [{"name": "a", "name": "b", "devices": [{}]}]})",
       "key \"name\" comes twice"},
      {R"({"hosts": [{"name": "a", "devices": [{"count": 4096}, {}]}]})",
       "hosts[0].devices has 4097 devices"},
      {R"({"hosts": [{"name": "a", "devices": [{"count": 1e3}]}]})",
       "hosts[0].devices[0].count is 1000.0"},
      {R"({"hosts": [{"name": "a", "devices": [{"model": "é"}]}]})",
       "hosts[0].devices[0].model has 2 characters, some not printable"},
      {R"({"hosts": [{"name": "a", "devices": [{}],
           "links": {"host": {"bandwidth": 0}}}]})",
       "hosts[0].links.host.bandwidth is 0 B/s"},
      {std::string(17, '[') + std::string(17, ']'), "nested more than 16 deep"},
  };
  for (const auto& [text, reason] : cases) {
    EXPECT_THAT(ClusterFromJson(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(reason)))
        << text;
  }
}

class ClusterFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = absl::StrCat(
        ::testing::TempDir(), "/",
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
  }

  std::string Path(std::string_view name) const {
    return absl::StrCat(directory_, "/", name);
  }
  size_t FileCount() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator(directory_)) {
      ++count;
    }
    return count;
  }

  std::string directory_;
};

std::string Content(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST_F(ClusterFileTest, SavesAndLoads) {
  const Cluster cluster = *ParseCluster("hosts=3,gpus=2");
  TESSERA_ASSERT_OK(SaveCluster(cluster, Path("cluster.json")));
  EXPECT_THAT(LoadCluster(Path("cluster.json")), IsOkAndHolds(cluster));
  EXPECT_EQ(FileCount(), 1u);
}

TEST_F(ClusterFileTest, ReplacesExistingFile) {
  const Cluster cluster = *ParseCluster("hosts=3,gpus=2");
  std::ofstream(Path("c")) << std::string(100'000, 'x');
  TESSERA_ASSERT_OK(SaveCluster(cluster, Path("c")));
  EXPECT_THAT(LoadCluster(Path("c")), IsOkAndHolds(cluster));
  EXPECT_EQ(FileCount(), 1u);
}

TEST_F(ClusterFileTest, IgnoresLeftoverTemporaryFile) {
  const std::string leftover = absl::StrCat(Path("c"), ".", getpid(), ".0.tmp");
  std::ofstream(leftover) << "half";
  TESSERA_ASSERT_OK(SaveCluster(*ParseCluster("gpus=1"), Path("c")));
  TESSERA_EXPECT_OK(LoadCluster(Path("c")));
  EXPECT_EQ(Content(leftover), "half");
}

TEST_F(ClusterFileTest, FileHasDefaultMode) {
  TESSERA_ASSERT_OK(SaveCluster(*ParseCluster("gpus=1"), Path("c")));
  std::ofstream(Path("other")) << "x";
  EXPECT_EQ(std::filesystem::status(Path("c")).permissions(),
            std::filesystem::status(Path("other")).permissions());
}

TEST_F(ClusterFileTest, FailedSaveChangesNothing) {
  const Cluster cluster = *ParseCluster("gpus=1");
  EXPECT_THAT(SaveCluster(cluster, Path("missing/c")),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("cannot make a new file beside")));
  std::filesystem::create_directory(Path("taken"));
  std::ofstream(Path("taken/inside")) << "kept";
  EXPECT_THAT(SaveCluster(cluster, Path("taken")).message(),
              HasSubstr(absl::StrCat("cannot write \"", Path("taken"),
                                     "\": it is a directory")));
  EXPECT_EQ(Content(Path("taken/inside")), "kept");
  EXPECT_EQ(FileCount(), 1u);
}

TEST_F(ClusterFileTest, LoadErrorsNameFile) {
  EXPECT_THAT(LoadCluster(Path("none")),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr(absl::StrCat("\"", Path("none"), "\""))));
  EXPECT_THAT(LoadCluster(directory_).status().message(),
              HasSubstr("cannot read"));
  std::ofstream(Path("bad")) << "{\"hosts\": [}";
  EXPECT_THAT(LoadCluster(Path("bad")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(Path("bad")), HasSubstr("line 1"))));
}

TEST_F(ClusterFileTest, RejectsEndlessFile) {
  EXPECT_THAT(
      LoadCluster("/dev/zero"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("use at most")));
}

}  // namespace

}  // namespace tessera::topology
