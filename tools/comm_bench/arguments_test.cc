#include "tools/comm_bench/arguments.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::tools {
namespace {

using ::testing::ElementsAre;

TEST(ArgumentsTest, ShortFlagsBecomeLongOnes) {
  EXPECT_THAT(LongArguments({"-b", "8", "-e", "64M", "-f", "4", "-n", "20",
                             "-w", "5", "-d", "bf16", "-o", "max", "-c", "0"}),
              ElementsAre("--min_bytes=8", "--max_bytes=64M", "--factor=4",
                          "--iterations=20", "--warmup=5", "--dtype=bf16",
                          "--reduction=max", "--check=0"));
}

TEST(ArgumentsTest, TheValueMayBeJoined) {
  EXPECT_THAT(LongArguments({"-b8", "-e=64M"}),
              ElementsAre("--min_bytes=8", "--max_bytes=64M"));
}

TEST(ArgumentsTest, AMissingValueIsLeftToTheParser) {
  EXPECT_THAT(LongArguments({"-b"}), ElementsAre("--min_bytes"));
}

TEST(ArgumentsTest, EverythingElseStays) {
  EXPECT_THAT(
      LongArguments({"--np=4", "--min_bytes", "8", "-x", "-", "", "-h", "b"}),
      ElementsAre("--np=4", "--min_bytes", "8", "-x", "-", "", "-h", "b"));
}

}  // namespace
}  // namespace tessera::tools
