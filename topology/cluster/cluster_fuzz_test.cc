#include <cmath>
#include <string>

#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"
#include "topology/cluster/cluster_file.h"

namespace tessera::topology {

namespace {

TEST(ClusterSpecFuzzTest, MutatedSpecsParseOrFail) {
  TextMutator mutator(
      {"hosts=16,gpus=8", "hosts=2,cpus=4",
       "hosts=4,gpus=8,sockets=2,numa=2,memory=80GB,nvlink=900GB,name=a",
       "gpus=3,network=400Gb/s,nics=2,network_latency=14us,nvlink=none",
       "hosts=18,gpus=4,nvlink_hosts=18,host=22GB,host_latency=1.5ms"},
      {",", "=", "hosts=", "gpus=8", "cpus=1", "nvlink=none", "us", "GB/s",
       "Gb", "e9", "inf", "nan", "0x10", "-", ".", " ", "1.", "name=x"},
      1);
  int valid = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::string text = mutator.Next();
    const auto cluster = ParseCluster(text);
    if (!cluster.ok()) {
      ASSERT_THAT(cluster, StatusIs(absl::StatusCode::kInvalidArgument));
      ASSERT_FALSE(cluster.status().message().empty());
      ASSERT_LT(cluster.status().message().size(), 4000u);
      continue;
    }
    ++valid;
    // An accepted cluster passes the checks again.
    const std::vector<HostGroup> groups(cluster->groups().begin(),
                                        cluster->groups().end());
    ASSERT_THAT(Cluster::Create(groups), IsOkAndHolds(*cluster)) << text;
  }
  EXPECT_GT(valid, 1000);
}

TEST(UnitsFuzzTest, FiguresAreFiniteAndWithinTheirRange) {
  TextMutator mutator(
      {"450GB/s", "400Gb", "3.4us", "500ns", "12.5GBps", "1s"},
      {"us", "ms", "GB", "b", "/s", ".", "e9", "inf", "nan", "-"}, 2);
  for (int i = 0; i < 100'000; ++i) {
    const std::string text = mutator.Next();
    if (const auto value = ParseBandwidth(text); value.ok()) {
      ASSERT_TRUE(std::isfinite(*value) && *value > 0) << text;
    }
    if (const auto value = ParseLatency(text); value.ok()) {
      ASSERT_TRUE(*value >= 0 && *value <= 1000) << text;
    }
  }
}

TEST(ClusterJsonFuzzTest, MutatedDocumentsRoundTripOrFail) {
  TextMutator mutator(
      {ClusterToJson(*ParseCluster("hosts=16,gpus=8,sockets=2,memory=80GB")),
       ClusterToJson(*ParseCluster("cpus=3,sockets=2")),
       R"({"hosts":[{"name":"a","devices":[{}]},{"name":"b","devices":[{}]}]})",
       R"({"hosts":[{"name":"a","count":2,"nvlink_hosts":2,"devices":[{}],
           "links":{"network":{"kind":"ethernet","bandwidth":1e9}}}]})"},
      {"{",
       "}",
       "[",
       "]",
       ",",
       ":",
       "\"",
       "\\",
       "\\u0000",
       "\\ud800",
       "null",
       "true",
       "-",
       "1e999",
       "-0",
       "0.1",
       "18446744073709551616",
       "\"count\":",
       "\"hosts\":[",
       "\xff",
       "\xc3\xa9",
       std::string(1, '\0'),
       std::string(40, '['),
       "{\"a\":{\"a\":{\"a\":"},
      1);
  int valid = 0;
  for (int i = 0; i < 40'000; ++i) {
    const std::string text = mutator.Next();
    const auto cluster = ClusterFromJson(text);
    if (!cluster.ok()) {
      ASSERT_THAT(cluster, StatusIs(absl::StatusCode::kInvalidArgument))
          << text;
      ASSERT_FALSE(cluster.status().message().empty()) << text;
      ASSERT_LT(cluster.status().message().size(), 10'000u) << text;
      continue;
    }
    ++valid;
    ASSERT_THAT(ClusterFromJson(ClusterToJson(*cluster)),
                IsOkAndHolds(*cluster))
        << text;
  }
  EXPECT_GT(valid, 500);
}

TEST(ClusterJsonFuzzTest, RejectsDeepNestingOfAnyShape) {
  for (size_t depth : {17, 1000, 1'000'000}) {
    for (const std::string piece :
         {"[", "{\"hosts\":", "{\"hosts\":[", "[{\"a\":", "\n["}) {
      std::string text;
      for (size_t i = 0; i < depth; ++i) text += piece;
      EXPECT_THAT(ClusterFromJson(text),
                  StatusIs(absl::StatusCode::kInvalidArgument));
    }
  }
}

TEST(ClusterJsonFuzzTest, RejectsTooLargeTextUnread) {
  EXPECT_THAT(ClusterFromJson(std::string(kMaxClusterJsonBytes + 1, ' ')),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("at most 67108864")));
}

}  // namespace

}  // namespace tessera::topology
