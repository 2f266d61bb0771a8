#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/pressure/system_memory.h"

namespace tessera::offload {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(MemoryFilesTest, ReadsMeminfo) {
  EXPECT_THAT(ParseMemoryInfo("MemTotal:       24684084 kB\n"
                              "MemFree:        11384316 kB\n"
                              "MemAvailable:   19819680 kB\n"
                              "HugePages_Total:       0\n"),
              IsOkAndHolds(MemoryInfo{24684084LL << 10, 19819680LL << 10}));
  // MemAvailable is missing, or larger than the total.
  EXPECT_THAT(ParseMemoryInfo("MemTotal: 100 kB\nMemFree: 30 kB\n"
                              "Cached: 20 kB\n"),
              IsOkAndHolds(MemoryInfo{100 << 10, 50 << 10}));
  EXPECT_THAT(ParseMemoryInfo("MemTotal: 100 kB\nMemAvailable: 300 kB\n"),
              IsOkAndHolds(MemoryInfo{100 << 10, 100 << 10}));
}

TEST(MemoryFilesTest, ReadsPressureStalls) {
  EXPECT_THAT(ParsePressureStall(
                  "some avg10=12.34 avg60=0.10 avg300=0.00 total=123456789\n"
                  "full avg10=5.00 avg60=0.00 avg300=0.00 total=42\n"),
              IsOkAndHolds(PressureStall{12.34, 5}));
  EXPECT_THAT(ParsePressureStall("some avg10=1.00 avg60=0.10 total=1\n"),
              IsOkAndHolds(PressureStall{1, 0}));
}

TEST(MemoryFilesTest, ReadsLimits) {
  EXPECT_THAT(ParseMemoryLimit("max\n"), IsOkAndHolds(kNoLimit));
  EXPECT_THAT(ParseMemoryLimit("9223372036854771712\n"),
              IsOkAndHolds(kNoLimit));
  EXPECT_THAT(ParseMemoryLimit("1073741824\n"), IsOkAndHolds(1LL << 30));
  EXPECT_THAT(ParseMemoryLimit("0"), IsOkAndHolds(0));
}

TEST(MemoryFilesTest, ReadsKeyedNumbers) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const KeyedNumbers numbers,
                               ParseKeyedNumbers("low 0\noom_kill 7\n"));
  EXPECT_THAT(numbers, ElementsAre(Pair("low", 0), Pair("oom_kill", 7)));
}

TEST(MemoryFilesTest, ReadsTheProcess) {
  EXPECT_THAT(ParseProcessMemory("765 446 418 5 0 123 0\n", 4096),
              IsOkAndHolds(ProcessMemory{765 * 4096, 446 * 4096, 123 * 4096}));
  EXPECT_THAT(
      ParseProcessLimits(
          "Limit                     Soft Limit   Hard Limit    Units\n"
          "Max cpu time              unlimited    unlimited     seconds\n"
          "Max data size             unlimited    unlimited     bytes\n"
          "Max address space         8589934592   unlimited     bytes\n"),
      IsOkAndHolds(ProcessLimits{8589934592, kNoLimit}));
}

TEST(MemoryFilesTest, ReadsMembershipsAndMounts) {
  EXPECT_THAT(ParseCgroupMembership("4:cpu,memory:/jobs/a:b\n"
                                    "1:name=systemd:/\n0::/user.slice/x\n"),
              IsOkAndHolds(CgroupMembership{"/user.slice/x", "/jobs/a:b"}));
  EXPECT_THAT(ParseCgroupMembership("1:cpu:/\n"),
              IsOkAndHolds(CgroupMembership{}));
  EXPECT_THAT(
      ParseCgroupMounts(
          "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup "
          "cgroup rw,memory\n"
          "33 31 0:30 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
          "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
          "41 31 0:38 /docker/1 /sys/fs/my\\040cgroup rw - cgroup2 none rw\n"),
      IsOkAndHolds(
          std::vector<CgroupMount>{{false, "/", "/sys/fs/cgroup/memory"},
                                   {true, "/docker/1", "/sys/fs/my cgroup"}}));
}

TEST(MemoryFilesTest, RejectsOtherFormatsAndQuotesLine) {
  EXPECT_THAT(ParseMemoryInfo("MemTotal: many kB\n"),
              StatusIs(kInvalid, AllOf(HasSubstr("meminfo"),
                                       HasSubstr("MemTotal: many kB"))));
  EXPECT_THAT(ParseMemoryInfo("MemFree: 1 kB\n"), StatusIs(kInvalid));
  EXPECT_THAT(ParseMemoryInfo("MemTotal: 99999999999999999 kB\n"),
              StatusIs(kInvalid));
  for (const char* text : {"some avg10=101", "some avg10=-1", "some avg10=nan",
                           "some avg60=1", "full avg10=1", "x"}) {
    EXPECT_THAT(ParsePressureStall(text), StatusIs(kInvalid)) << text;
  }
  for (const char* text :
       {"-1", "1 2", "1\n2", "0x10", "1e3", "", "99999999999999999999"}) {
    EXPECT_THAT(ParseMemoryLimit(text), StatusIs(kInvalid)) << text;
  }
  EXPECT_THAT(ParseKeyedNumbers("file\n"), StatusIs(kInvalid));
  EXPECT_THAT(ParseProcessMemory("1 2 3", 4096), StatusIs(kInvalid));
  EXPECT_THAT(ParseProcessMemory("1 2 3 4 5 6", 0), StatusIs(kInvalid));
  EXPECT_THAT(ParseProcessLimits("Max cpu time 1\n"), StatusIs(kInvalid));
  EXPECT_THAT(ParseCgroupMembership("0:memory"), StatusIs(kInvalid));
  EXPECT_THAT(ParseCgroupMembership("0::relative"), StatusIs(kInvalid));
  EXPECT_THAT(ParseCgroupMounts("1 2 3\n"), StatusIs(kInvalid));
}

TEST(MemoryFilesTest, LimitsInputAndErrorSize) {
  const std::string large(static_cast<size_t>(kMaxMemoryFileBytes) + 1, 'x');
  EXPECT_THAT(ParseKeyedNumbers(large),
              StatusIs(kInvalid, HasSubstr("at most 1048576")));
  const absl::Status bad = ParseKeyedNumbers(std::string(1000, '\1')).status();
  EXPECT_THAT(bad, StatusIs(kInvalid, HasSubstr("\\x01...")));
  EXPECT_LT(bad.message().size(), 600u);
}

}  // namespace
}  // namespace tessera::offload
