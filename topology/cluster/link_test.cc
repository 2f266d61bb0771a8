#include "topology/cluster/link.h"

#include <cmath>
#include <set>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::topology {
namespace {

using ::testing::HasSubstr;

TEST(LinkTest, NamesAreDistinctAndReadBack) {
  std::set<std::string_view> names;
  for (LinkLevel level : kAllLinkLevels) {
    names.insert(LinkLevelName(level));
    EXPECT_EQ(ParseLinkLevel(LinkLevelName(level)), level);
    EXPECT_THAT(LinkLevelNames(), HasSubstr(std::string(LinkLevelName(level))));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kLinkLevels));
  names.clear();
  for (int i = 0; i < kLinkKinds; ++i) {
    const auto kind = static_cast<LinkKind>(i);
    names.insert(LinkKindName(kind));
    EXPECT_EQ(ParseLinkKind(LinkKindName(kind)), kind);
    EXPECT_THAT(LinkKindNames(), HasSubstr(std::string(LinkKindName(kind))));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kLinkKinds));
}

TEST(LinkTest, UnknownNamesAreNothing) {
  EXPECT_EQ(ParseLinkLevel("NVLINK"), std::nullopt);
  EXPECT_EQ(ParseLinkLevel(""), std::nullopt);
  EXPECT_EQ(ParseLinkKind("string"), std::nullopt);
}

TEST(LinkTest, DefaultsGetSlowerWithDistance) {
  for (const LinkTable& links : {GpuLinks(), CpuLinks()}) {
    const LinkSpeed* nearer = &LinkAt(links, LinkLevel::kDevice);
    for (LinkLevel level : kAllLinkLevels) {
      const LinkSpeed& link = LinkAt(links, level);
      EXPECT_TRUE(std::isfinite(link.bandwidth) && link.bandwidth > 0) << level;
      EXPECT_TRUE(std::isfinite(link.latency) && link.latency >= 0) << level;
      // CPU slots have no NVLink, whose figure is there for those that ask.
      if (links == CpuLinks() && level == LinkLevel::kNvlink) continue;
      // Cards of a cluster may be faster than what joins two sockets.
      if (level != LinkLevel::kNetwork) {
        EXPECT_LE(link.bandwidth, nearer->bandwidth) << level;
      }
      EXPECT_GE(link.latency, nearer->latency) << level;
      nearer = &link;
    }
  }
}

TEST(LinkTest, PrintsByName) {
  std::ostringstream out;
  out << LinkLevel::kNumaNode << ' ' << LinkKind::kSharedMemory;
  EXPECT_EQ(out.str(), "numa_node shared_memory");
}

}  // namespace
}  // namespace tessera::topology
