#include "tools/offload_bench/bench_options.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/cli/cli.h"

namespace tessera::offload_bench {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<OffloadBenchOptions> Parse(
    const std::vector<std::string>& arguments) {
  OffloadBenchOptions options;
  TESSERA_RETURN_IF_ERROR(
      tools::ParseFlags(OffloadBenchTool(options), arguments));
  TESSERA_RETURN_IF_ERROR(CompleteOptions(options));
  return options;
}

TEST(BenchOptionsTest, DefaultsMeasureEverything) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto options, Parse({}));
  EXPECT_EQ(options.device, "cpu");
  EXPECT_THAT(options.blocks, ElementsAre(64 << 10, 1 << 20, 16 << 20));
  EXPECT_EQ(options.step.pcie_bytes_per_second,
            StepModel().pcie_bytes_per_second);
  EXPECT_EQ(options.step.memory_bytes_per_second,
            StepModel().memory_bytes_per_second);
  EXPECT_EQ(options.step.host_bytes_per_second,
            StepModel().host_bytes_per_second);
}

TEST(BenchOptionsTest, BlocksGrowByTheFactorUpToTheSize) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto options,
      Parse({"-b", "8K", "-e", "64K", "-f", "4", "--seconds=0"}));
  EXPECT_THAT(options.blocks, ElementsAre(8 << 10, 32 << 10));
  EXPECT_EQ(options.seconds, 0);
}

TEST(BenchOptionsTest, DevicesHaveRatesAndModels) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto options,
      Parse({"--device=emulated", "--pcie=25GB/s", "--host_memory=200GB",
             "--layers=3", "--layer_ms=5"}));
  EXPECT_EQ(options.device, "emulated");
  EXPECT_EQ(options.step.pcie_bytes_per_second, 25e9);
  EXPECT_EQ(options.step.host_bytes_per_second, 200e9);
  EXPECT_EQ(options.step.layers, 3);
  EXPECT_EQ(options.step.layer_seconds, 5e-3);
}

TEST(BenchOptionsTest, RejectsFlagsOfOtherDevices) {
  struct Case {
    std::string flag;
    std::vector<std::string_view> devices;
  };
  const std::vector<Case> cases = {
      {"--dir=/tmp", {"cpu"}},
      {"--depth=2", {"cpu"}},
      {"--size=32MiB", {"cpu", "cuda"}},
      {"--seconds=1", {"cpu", "cuda"}},
      {"--min_bytes=4096", {"cpu", "cuda"}},
      {"--max_bytes=1MiB", {"cpu", "cuda"}},
      {"--factor=2", {"cpu", "cuda"}},
      {"--pcie=1GB/s", {"cuda", "emulated"}},
      {"--device_memory=1GB/s", {"emulated"}},
      {"--host_memory=1GB/s", {"emulated"}},
      {"--layers=2", {"emulated"}},
      {"--layer_parameters=2000", {"emulated"}},
      {"--layer_ms=2", {"emulated"}},
  };
  for (const Case& c : cases) {
    for (const std::string_view device : kDevices) {
      const std::string flag = "--device=" + std::string(device);
      const auto options = Parse({flag, c.flag});
      if (std::find(c.devices.begin(), c.devices.end(), device) !=
          c.devices.end()) {
        EXPECT_THAT(options, IsOk()) << c.flag;
        continue;
      }
      EXPECT_THAT(options,
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           AllOf(HasSubstr(flag + ": " +
                                           c.flag.substr(0, c.flag.find('=')) +
                                           " has no effect"),
                                 HasSubstr("use --device=" +
                                           std::string(c.devices.front())))));
    }
  }
}

TEST(BenchOptionsTest, RejectionsNameTheFlagTheValueAndWhatIsAllowed) {
  struct Case {
    std::vector<std::string> arguments;
    std::string flag, allowed;
  };
  const std::vector<Case> cases = {
      {{"--size=0"}, "--size=0", "multiple of 4096"},
      {{"--size=5000"}, "--size=5", "multiple of 4096"},
      {{"--size=1PiB"}, "--size=1PiB", "256GiB"},
      {{"--seconds=-1"}, "--seconds=-1", "0 to 3600"},
      {{"--seconds=nan"}, "--seconds=nan", "0 to 3600"},
      {{"--min_bytes=4097"}, "--min_bytes=", "multiple"},
      {{"--min_bytes=32M"}, "--min_bytes=32MiB", "--max_bytes=16MiB"},
      {{"--max_bytes=4G"}, "--max_bytes=4GiB", "--size=64MiB"},
      {{"--factor=1"}, "--factor=1", "2 to"},
      {{"--depth=0"}, "--depth=0", "1 to 4096"},
      {{"--dir="}, "--dir=", "directory"},
      {{"--device=gpu"}, "--device=gpu", "cpu, cuda, emulated"},
      {{"--device=cuda", "--pcie=5"}, "--pcie=5", "at least 1MB/s"},
      {{"--device=cuda", "--pcie=x"}, "--pcie=", "50GB/s"},
      {{"--device=emulated", "--device_memory=0"},
       "--device_memory=",
       "50GB/s"},
      {{"--device=emulated", "--host_memory="}, "--host_memory=", "50GB/s"},
      {{"--device=emulated", "--layers=257"}, "--layers=257", "1 to 256"},
      {{"--device=emulated", "--layer_parameters=3"},
       "--layer_parameters=3",
       "4 to"},
      {{"--device=emulated", "--layer_ms=nan"}, "--layer_ms=nan", "above 0"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(Parse(c.arguments),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(c.flag), HasSubstr(c.allowed))));
  }
}

}  // namespace
}  // namespace tessera::offload_bench
