#include <cstdlib>
#include <string>

#include "base/file.h"
#include "base/status_matchers.h"
#include "collectives/adaptive/create_adaptive.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::HasSubstr;

CostTable Example() {
  CostTable table;
  table.key = {"cpu x", "shared_memory", 8, 4, false};
  table.costs.near = {1e-6, 1e-10};
  table.measured[{OpKind::kAllReduce, Algorithm::kRing}] = {{64, 1e-6}};
  return table;
}

std::string Directory(const std::string& name) {
  return ::testing::TempDir() + "/cache_home_" + name + "/tessera";
}

TEST(CostCacheTest, WhatWasStoredIsLoaded) {
  const std::string directory = Directory("round_trip");
  EXPECT_THAT(LoadCosts(directory, Example().key),
              StatusIs(absl::StatusCode::kNotFound));
  TESSERA_ASSERT_OK(StoreCosts(directory, Example()));
  EXPECT_THAT(LoadCosts(directory, Example().key), IsOkAndHolds(Example()));
}

TEST(CostCacheTest, EveryPartOfTheKeyCounts) {
  const std::string directory = Directory("key");
  TESSERA_ASSERT_OK(StoreCosts(directory, Example()));
  std::vector<CostKey> others(5, Example().key);
  others[0].hardware = "cpu y";
  others[1].engine = "mpi";
  others[2].ranks = 9;
  others[3].ranks_per_host = 8;
  others[4].reproducible = true;
  for (const CostKey& key : others) {
    EXPECT_THAT(LoadCosts(directory, key),
                StatusIs(absl::StatusCode::kNotFound));
    EXPECT_NE(CostPath(directory, key), CostPath(directory, Example().key));
  }
}

TEST(CostCacheTest, AFileOfAnotherKeyUnderThisNameIsIgnored) {
  const std::string directory = Directory("foreign");
  CostTable other = Example();
  other.key.engine = "gloo";
  TESSERA_ASSERT_OK(StoreCosts(directory, other));
  TESSERA_ASSERT_OK(
      WriteFile(CostPath(directory, Example().key), CostTableToJson(other)));
  EXPECT_THAT(LoadCosts(directory, Example().key),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("another key")));
}

TEST(CostCacheTest, ADamagedFileIsIgnoredAndReplaced) {
  const std::string directory = Directory("damaged");
  TESSERA_ASSERT_OK(StoreCosts(directory, Example()));
  const std::string path = CostPath(directory, Example().key);
  std::string text = CostTableToJson(Example());
  text[text.size() / 2] ^= 1;
  TESSERA_ASSERT_OK(WriteFile(path, text));
  EXPECT_THAT(LoadCosts(directory, Example().key),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(path)));
  TESSERA_ASSERT_OK(StoreCosts(directory, Example()));
  EXPECT_THAT(LoadCosts(directory, Example().key), IsOkAndHolds(Example()));
}

TEST(CostCacheTest, AHugeFileIsIgnored) {
  const std::string directory = Directory("huge");
  TESSERA_ASSERT_OK(StoreCosts(directory, Example()));
  TESSERA_ASSERT_OK(WriteFile(CostPath(directory, Example().key),
                              std::string(kMaxCostText + 1, ' ')));
  EXPECT_THAT(LoadCosts(directory, Example().key),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST(CostCacheTest, WhatCannotBeKeptIsAnError) {
  EXPECT_THAT(StoreCosts("", Example()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("XDG_CACHE_HOME")));
  EXPECT_FALSE(StoreCosts("/proc/no/such/place", Example()).ok());
  CostTable bad = Example();
  bad.costs.gamma = -1;
  EXPECT_THAT(StoreCosts(Directory("bad"), bad),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CostCacheTest, TheDirectoryIsTheUsersCache) {
  setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(DefaultCacheDirectory(), "/x/tessera");
  setenv("XDG_CACHE_HOME", "relative", 1);
  setenv("HOME", "/home/me", 1);
  EXPECT_EQ(DefaultCacheDirectory(), "/home/me/.cache/tessera");
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(DefaultCacheDirectory(), "/home/me/.cache/tessera");
  unsetenv("HOME");
  EXPECT_EQ(DefaultCacheDirectory(), "");
}

}  // namespace
}  // namespace tessera::collectives
