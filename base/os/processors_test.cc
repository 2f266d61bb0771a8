#include "base/os/processors.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(ProcessorsTest, ReadsTheQuotaOfACgroup) {
  EXPECT_EQ(ParseCpuMax("200000 100000\n"), 2);
  EXPECT_EQ(ParseCpuMax("150000 100000"), 2);
  EXPECT_EQ(ParseCpuMax("50000 100000"), 1);
  EXPECT_EQ(ParseCpuMax("max 100000\n"), 0);
  for (const char* other : {"", "7", "x y", "-1 100000", "100000 0", "1 2 3"}) {
    EXPECT_EQ(ParseCpuMax(other), 0) << other;
  }
}

TEST(ProcessorsTest, IsAtMostTheAffinityMask) {
  const std::vector<int> all = AllowedProcessors();
  ASSERT_FALSE(all.empty());
  const int64_t before = AvailableProcessors();
  EXPECT_GE(before, 1);
  EXPECT_LE(before, static_cast<int64_t>(all.size()));
  const std::vector<int> one = {all.back()};
  ASSERT_THAT(BindThisThread(one), IsOk());
  EXPECT_EQ(AllowedProcessors(), one);
  EXPECT_EQ(AvailableProcessors(), 1);
  ASSERT_THAT(BindThisThread(all), IsOk());
  EXPECT_EQ(AllowedProcessors(), all);
  EXPECT_THAT(BindThisThread({}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("binding to 0 processors")));
  EXPECT_EQ(AllowedProcessors(), all);
}

TEST(ProcessorsTest, SharesAreEvenOrRoundRobin) {
  for (int64_t size = 1; size <= 9; ++size) {
    std::vector<int> processors;
    for (int i = 0; i < size; ++i) processors.push_back(3 + 2 * i);
    for (int64_t count = 1; count <= 12; ++count) {
      std::vector<int> together;
      for (int64_t index = 0; index < count; ++index) {
        const auto share = ShareOfProcessors(processors, index, count);
        EXPECT_GE(static_cast<int64_t>(share.size()),
                  std::max<int64_t>(1, size / count));
        EXPECT_LE(static_cast<int64_t>(share.size()),
                  (size + count - 1) / count);
        together.insert(together.end(), share.begin(), share.end());
      }
      if (size >= count) {
        EXPECT_EQ(together, processors);
      } else {
        for (int64_t i = 0; i < count; ++i) {
          EXPECT_EQ(together[static_cast<size_t>(i)],
                    processors[static_cast<size_t>(i % size)]);
        }
      }
    }
  }
  EXPECT_TRUE(ShareOfProcessors({}, 0, 1).empty());
}

TEST(ProcessorsTest, FindsSocketOfAllProcessors) {
  const std::string directory = ::testing::TempDir() + "/cpus";
  // Processors 0 to 4; there is no cpu5.
  const std::vector<std::string> ids = {"0\n", "0\n", "1\n", "-1\n", "?"};
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string topology =
        absl::StrCat(directory, "/cpu", i, "/topology");
    std::filesystem::create_directories(topology);
    std::ofstream(topology + "/physical_package_id") << ids[i];
  }
  EXPECT_EQ(SocketOf({0, 1}, directory), 0);
  EXPECT_EQ(SocketOf({2}, directory), 1);
  for (const std::vector<int>& unknown :
       {std::vector<int>{}, {1, 2}, {3}, {0, 3}, {4}, {5}}) {
    EXPECT_EQ(SocketOf(unknown, directory), std::nullopt)
        << ::testing::PrintToString(unknown);
  }
}

}  // namespace
}  // namespace tessera
