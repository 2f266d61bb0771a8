#include "tools/cli/typed_flags.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/byte_size.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<int64_t> ParseEven(std::string_view text) {
  int64_t number = 0;
  if (absl::SimpleAtoi(text, &number) && number % 2 == 0) return number;
  return absl::InvalidArgumentError("expected even numbers");
}

class TypedFlagsTest : public ::testing::Test {
 protected:
  absl::Status Parse(const std::vector<std::string>& arguments) {
    return ParseFlags(tool_, arguments);
  }

  bool loud_ = false;
  ByteSize size_ = ByteSize(8);
  int64_t factor_ = 4;
  int64_t even_ = 2;
  std::vector<int64_t> list_ = {0};
  const Tool tool_ = {
      .name = "tool",
      .summary = "A tool.",
      .example = "--loud",
      .flags = {FieldFlag("loud", "shouts", loud_),
                FieldFlag("size", "bytes", size_),
                RangeFlag("factor", "growth", factor_, 2, 64),
                ParsedFlag("even", "a number", "2", even_, ParseEven),
                ListFlag("list", "numbers", "0", list_, ParseEven)}};
};

TEST_F(TypedFlagsTest, StoreTheirValues) {
  TESSERA_ASSERT_OK(Parse(
      {"--loud", "--size=4K", "--factor", "8", "--even=6", "--list=2,8,4"}));
  EXPECT_TRUE(loud_);
  EXPECT_EQ(size_.bytes(), 4096);
  EXPECT_EQ(factor_, 8);
  EXPECT_EQ(even_, 6);
  EXPECT_THAT(list_, ElementsAre(2, 8, 4));
  TESSERA_ASSERT_OK(Parse({"--noloud"}));
  EXPECT_FALSE(loud_);
}

TEST_F(TypedFlagsTest, HelpShowsTheDefaults) {
  EXPECT_THAT(HelpText(tool_), HasSubstr("--loud=false\n"));
  EXPECT_THAT(HelpText(tool_), HasSubstr("--size=8B\n"));
  EXPECT_THAT(HelpText(tool_), HasSubstr("--list=0\n"));
}

TEST_F(TypedFlagsTest, RejectInvalidValuesWithFlagAndValue) {
  const std::pair<std::string, std::string> cases[] = {
      {"--loud=maybe", "not a value"}, {"--size=-1", "size"},
      {"--factor=1", "2 to 64"},       {"--factor=65", "2 to 64"},
      {"--factor=x", "not a value"},   {"--even=3", "even numbers"},
      {"--list=2,3", "even numbers"},  {"--list=2,4,2", "2 is listed twice"},
      {"--list=", "even numbers"}};
  for (const auto& [flag, reason] : cases) {
    const absl::Status status = Parse({flag});
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr(reason)));
    EXPECT_THAT(std::string(status.message()),
                ::testing::StartsWith(flag + ": "));
  }
}

TEST(GrowingSizesTest, GrowUpToTheLargest) {
  EXPECT_THAT(GrowingSizes(8, 600, 4),
              IsOkAndHolds(ElementsAre(8, 32, 128, 512)));
  EXPECT_THAT(GrowingSizes(8, 8, 2), IsOkAndHolds(ElementsAre(8)));
  EXPECT_THAT(GrowingSizes(2048, 1024, 2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--min_bytes=2KiB: at most --max_bytes=1KiB is "
                       "allowed"));
}

}  // namespace
}  // namespace tessera::tools
