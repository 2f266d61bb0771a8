#include "base/byte_size.h"

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/marshalling.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(ByteSizeTest, ParsesBinaryDecimalShortAndPlain) {
  const std::vector<std::pair<std::string, int64_t>> cases = {
      {"0", 0},
      {"4096", 4096},
      {"17B", 17},
      {"1KiB", 1024},
      {"1k", 1024},
      {"64M", 64 << 20},
      {"2GiB", int64_t{2} << 30},
      {"2gib", int64_t{2} << 30},
      {"1.5 GB", 1'500'000'000},
      {" 3 MiB ", 3 << 20},
      {".5KiB", 512},
      // As Kubernetes writes them.
      {"8Gi", int64_t{8} << 30},
      {"512Mi", 512 << 20},
      {"1.5Ki", 1536},
      {"1e9", 1'000'000'000},
      {"1.5E+3", 1500},
      {"15e-1 kB", 1500},
      {"2e3KiB", 2'048'000},
      {"0e999", 0},
      {"0.0e-999", 0},
      {"100M", 100 << 20},
      {"1E", int64_t{1} << 60},
      {"1Ei", int64_t{1} << 60},
      {"7EiB", int64_t{7} << 60},
      {"9223372036854775807", std::numeric_limits<int64_t>::max()},
  };
  for (const auto& [text, bytes] : cases) {
    EXPECT_THAT(ParseByteSize(text), IsOkAndHolds(ByteSize(bytes))) << text;
  }
}

TEST(ByteSizeTest, RejectsInvalidSizesWithReason) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "is not a number"},
      {"GiB", "is not a number"},
      {".", "is not a number"},
      {"-1", "is negative"},
      {"1.2.3", "unknown unit"},
      {"5 bananas", "unknown unit"},
      {"1KiBB", "unknown unit"},
      {"1iB", "unknown unit"},
      {"1Bi", "unknown unit"},
      {"1e+", "unknown unit"},
      {"1e3.5", "unknown unit"},
      {"1e-1", "no whole number"},
      {"1e19", "exceeds"},
      {"1e999", "exceeds"},
      {"1e9999", "is not a number"},
      {"0.3KiB", "no whole number"},
      {"1.5", "no whole number"},
      {"8EiB", "exceeds"},
      {"9223372036854775808", "exceeds"},
      {"12345678901234567890123", "at most 19 digits"},
  };
  for (const auto& [text, reason] : cases) {
    EXPECT_THAT(ParseByteSize(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(reason)))
        << text;
  }
}

TEST(ByteSizeTest, PrintsTheLargestExactUnit) {
  const std::vector<std::pair<int64_t, std::string>> cases = {
      {0, "0B"},
      {1, "1B"},
      {1001, "1001B"},
      {1024, "1KiB"},
      {1536, "1.5KiB"},
      {int64_t{2} << 30, "2GiB"},
      {1'500'000'000, "1.5GB"},
      {-5, "-5B"},
      {std::numeric_limits<int64_t>::max(), "9223372036854775807B"},
  };
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(ByteSize(bytes).ToString(), text);
  }
}

TEST(ByteSizeTest, PrintedValuesParseBack) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100'000; ++i) {
    const auto bytes = static_cast<int64_t>((random() >> 1) >> (random() % 63));
    const ByteSize size(i % 3 == 0 ? bytes : bytes / 512 * 512);
    EXPECT_THAT(ParseByteSize(size.ToString()), IsOkAndHolds(size));
  }
}

TEST(ByteSizeTest, LimitsAreEmptyOrPositive) {
  EXPECT_THAT(ParseByteLimit(""), IsOkAndHolds(ByteSize()));
  EXPECT_THAT(ParseByteLimit("32GB"), IsOkAndHolds(ByteSize(32'000'000'000)));
  for (const int64_t bytes : {0, 1, 1 << 20}) {
    EXPECT_THAT(ParseByteLimit(FormatByteLimit(ByteSize(bytes))),
                IsOkAndHolds(ByteSize(bytes)));
  }
  for (const char* text : {"0", "0KiB", "-1", "1X", " "}) {
    EXPECT_THAT(ParseByteLimit(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("must be a number of bytes above 0")))
        << text;
  }
}

TEST(ByteSizeTest, IsAFlag) {
  ByteSize size;
  std::string error;
  ASSERT_TRUE(absl::ParseFlag("2GiB", &size, &error));
  EXPECT_EQ(size.bytes(), int64_t{2} << 30);
  EXPECT_EQ(absl::UnparseFlag(size), "2GiB");
  EXPECT_FALSE(absl::ParseFlag("two", &size, &error));
  EXPECT_THAT(error, HasSubstr("\"two\""));
  EXPECT_EQ(size.bytes(), int64_t{2} << 30);
}

}  // namespace
}  // namespace tessera
