#include "tools/offload_bench/bench_options.h"

#include <cmath>
#include <functional>
#include <string>
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
