#include "collectives/adaptive/measure_costs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::HasSubstr;

TEST(HardwareTest, FindsTheProcessorsName) {
  EXPECT_EQ(ModelNameIn("processor : 0\nmodel name\t: A B 9000\nflags: x\n"
                        "model name : C\n"),
            "A B 9000");
}

TEST(HardwareTest, SaysSoWhereThereIsNone) {
  EXPECT_EQ(ModelNameIn(""), "?");
  EXPECT_EQ(ModelNameIn("model name"), "?");
  EXPECT_EQ(ModelNameIn("model name:   \n"), "?");
}

TEST(HardwareTest, LongNamesAreShortened) {
  EXPECT_EQ(ModelNameIn("model name: " + std::string(5000, 'x')).size(), 120u);
}

TEST(HardwareTest, DescribesThisMachineTheSameEveryTime) {
  const std::string text = DescribeHardware();
  EXPECT_THAT(text, HasSubstr(" cpus; caches "));
  EXPECT_THAT(text, HasSubstr("; host "));
  EXPECT_LE(text.size(), 512u);
  EXPECT_EQ(text, DescribeHardware());
}

}  // namespace
}  // namespace tessera::collectives
