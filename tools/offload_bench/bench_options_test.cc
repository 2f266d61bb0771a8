#include "tools/offload_bench/bench_options.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::offload_bench {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(BenchOptionsTest, DefaultsMeasureEverything) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto options,
                               ParseOffloadBenchFlags({}, 6));
  EXPECT_EQ(options.parts.size(), kParts.size());
  EXPECT_THAT(options.threads, ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(options.codecs, Contains("lossless"));
  EXPECT_THAT(options.codecs, Not(Contains("quantization")));
  EXPECT_THAT(options.blocks, ElementsAre(64 << 10, 1 << 20, 16 << 20));
}

TEST(BenchOptionsTest, ListsAreTakenAsTheyAre) {
  OffloadBenchFlags flags;
  flags.what = "tiers,codecs";
  flags.threads = "3,1";
  flags.codecs = "nf4";
  flags.min_bytes = flags.max_bytes = 8192;
  flags.seconds = 0;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto options,
                               ParseOffloadBenchFlags(flags, 1));
  EXPECT_THAT(options.parts, ElementsAre("tiers", "codecs"));
  EXPECT_THAT(options.threads, ElementsAre(3, 1));
  EXPECT_THAT(options.codecs, ElementsAre("nf4"));
  EXPECT_THAT(options.blocks, ElementsAre(8192));
  flags.threads = "auto";
  EXPECT_THAT(ParseOffloadBenchFlags(flags, 1)->threads, ElementsAre(1));
}

TEST(BenchOptionsTest, BlocksAreHeldAgainstTheSizeOnlyWhereThereAreBlocks) {
  OffloadBenchFlags flags;
  flags.size = 4096;
  flags.what = "optimizer,codecs";
  TESSERA_EXPECT_OK(ParseOffloadBenchFlags(flags, 1).status());
  flags.what = "codecs,tiers";
  EXPECT_THAT(ParseOffloadBenchFlags(flags, 1),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("at most --size=4KiB")));
}

TEST(BenchOptionsTest, DevicesHaveRatesAndModels) {
  OffloadBenchFlags flags;
  flags.device = "emulated";
  flags.pcie = "25GB/s";
  flags.host_memory = "200GB";
  flags.layers = 3;
  flags.layer_ms = 5;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto options,
                               ParseOffloadBenchFlags(flags, 1));
  EXPECT_EQ(options.device, "emulated");
  EXPECT_EQ(options.step.pcie_bytes_per_second, 25e9);
  EXPECT_EQ(options.step.host_bytes_per_second, 200e9);
  EXPECT_EQ(options.step.memory_bytes_per_second,
            StepModel().memory_bytes_per_second);
  EXPECT_EQ(options.step.layers, 3);
  EXPECT_EQ(options.step.layer_seconds, 5e-3);
  OffloadBenchFlags copies;
  copies.device = "cuda";
  copies.pcie = "25GB/s";
  copies.size = 1 << 28;
  TESSERA_EXPECT_OK(ParseOffloadBenchFlags(copies, 1).status());
  EXPECT_EQ(ParseOffloadBenchFlags({}, 1)->step.pcie_bytes_per_second,
            StepModel().pcie_bytes_per_second);
}

TEST(BenchOptionsTest, FlagsOfAnotherDeviceAreRefused) {
  using Flags = OffloadBenchFlags;
  struct Case {
    std::function<void(Flags&)> change;
    std::string flag;
    std::vector<std::string_view> devices;
  };
  const std::vector<Case> cases = {
      {[](Flags& f) { f.what = "codecs"; }, "--what", {"cpu"}},
      {[](Flags& f) { f.threads = "1"; }, "--threads", {"cpu"}},
      {[](Flags& f) { f.clock = TimeKind::kProcessor; }, "--clock", {"cpu"}},
      {[](Flags& f) { f.codecs = "int8"; }, "--codecs", {"cpu"}},
      {[](Flags& f) { f.dir = "/tmp"; }, "--dir", {"cpu"}},
      {[](Flags& f) { f.depth = 2; }, "--depth", {"cpu"}},
      {[](Flags& f) { f.size = 1 << 25; }, "--size", {"cpu", "cuda"}},
      {[](Flags& f) { f.seconds = 1; }, "--seconds", {"cpu", "cuda"}},
      {[](Flags& f) { f.min_bytes = 4096; }, "--min_bytes", {"cpu", "cuda"}},
      {[](Flags& f) { f.max_bytes = 1 << 20; }, "--max_bytes", {"cpu", "cuda"}},
      {[](Flags& f) { f.factor = 2; }, "--factor", {"cpu", "cuda"}},
      {[](Flags& f) { f.pcie = "1GB/s"; }, "--pcie", {"cuda", "emulated"}},
      {[](Flags& f) { f.device_memory = "1GB/s"; },
       "--device_memory",
       {"emulated"}},
      {[](Flags& f) { f.host_memory = "1GB/s"; },
       "--host_memory",
       {"emulated"}},
      {[](Flags& f) { f.layers = 2; }, "--layers", {"emulated"}},
      {[](Flags& f) { f.layer_parameters = 2000; },
       "--layer_parameters",
       {"emulated"}},
      {[](Flags& f) { f.layer_ms = 2; }, "--layer_ms", {"emulated"}},
  };
  for (const Case& c : cases) {
    for (const std::string_view device : kDevices) {
      Flags flags;
      flags.device = device;
      c.change(flags);
      const auto options = ParseOffloadBenchFlags(flags, 2);
      const bool is_used = std::find(c.devices.begin(), c.devices.end(),
                                     device) != c.devices.end();
      if (is_used) {
        TESSERA_EXPECT_OK(options.status());
        continue;
      }
      EXPECT_THAT(options,
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           AllOf(HasSubstr("--device=" + std::string(device) +
                                           ": " + c.flag + " has no effect"),
                                 HasSubstr("use --device=" +
                                           std::string(c.devices.front())))));
    }
  }
}

TEST(BenchOptionsTest, RefusalsNameTheFlagTheValueAndWhatIsAllowed) {
  using Flags = OffloadBenchFlags;
  struct Case {
    std::function<void(Flags&)> change;
    std::string flag, allowed;
  };
  const std::vector<Case> cases = {
      {[](Flags& f) { f.what = "codec"; }, "--what=\"codec\"",
       "did you mean codecs? known: codecs, optimizer"},
      {[](Flags& f) { f.what = ""; }, "--what=", "known: "},
      {[](Flags& f) { f.what = "file,file"; }, "--what=", "twice"},
      {[](Flags& f) { f.codecs = "zip"; }, "--codecs=\"zip\"", "lossless"},
      {[](Flags& f) { f.threads = "0"; }, "--threads=", "1 to 1024"},
      {[](Flags& f) { f.threads = "2,2"; }, "--threads=", "different"},
      {[](Flags& f) { f.threads = "x"; }, "--threads=", "auto"},
      {[](Flags& f) { f.size = 0; }, "--size=0", "multiple of 4096"},
      {[](Flags& f) { f.size = 5000; }, "--size=5", "multiple of 4096"},
      {[](Flags& f) { f.size = int64_t{1} << 50; }, "--size=1PiB", "256GiB"},
      {[](Flags& f) { f.seconds = -1; }, "--seconds=-1", "0 to 3600"},
      {[](Flags& f) { f.seconds = NAN; }, "--seconds=nan", "0 to 3600"},
      {[](Flags& f) { f.min_bytes = 4097; }, "--min_bytes=", "multiple"},
      {[](Flags& f) { f.min_bytes = 32 << 20; }, "--min_bytes=32MiB",
       "--max_bytes=16MiB"},
      {[](Flags& f) { f.max_bytes = int64_t{1} << 32; }, "--max_bytes=4GiB",
       "--size=64MiB"},
      {[](Flags& f) { f.factor = 1; }, "--factor=1", "2 to"},
      {[](Flags& f) { f.depth = 0; }, "--depth=0", "1 to 4096"},
      {[](Flags& f) { f.dir = ""; }, "--dir=", "directory"},
      {[](Flags& f) { f.device = "gpu"; }, "--device=\"gpu\"",
       "cpu, cuda, emulated"},
      {[](Flags& f) { f.device = "cuda", f.pcie = "5"; }, "--pcie=\"5\"",
       "at least 1MB/s"},
      {[](Flags& f) { f.device = "cuda", f.pcie = "x"; }, "--pcie=", "50GB/s"},
      {[](Flags& f) { f.device = "emulated", f.device_memory = "0"; },
       "--device_memory=", "50GB/s"},
      {[](Flags& f) { f.device = "emulated", f.host_memory = ""; },
       "--host_memory=", "50GB/s"},
      {[](Flags& f) { f.device = "emulated", f.layers = 257; }, "--layers=257",
       "1 to 256"},
      {[](Flags& f) { f.device = "emulated", f.layer_parameters = 3; },
       "--layer_parameters=3", "4 to"},
      {[](Flags& f) { f.device = "emulated", f.layer_ms = NAN; },
       "--layer_ms=nan", "above 0"},
  };
  for (const Case& c : cases) {
    Flags flags;
    c.change(flags);
    EXPECT_THAT(ParseOffloadBenchFlags(flags, 2),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(c.flag), HasSubstr(c.allowed))));
  }
}

}  // namespace
}  // namespace tessera::offload_bench
