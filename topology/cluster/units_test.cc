#include "topology/cluster/units.h"

#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::topology {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(UnitsTest, BandwidthsInBytesAndBits) {
  const std::vector<std::pair<std::string, double>> cases = {
      {"450GB", 450e9},          {"450GB/s", 450e9},   {"450 GBps", 450e9},
      {"400Gb", 50e9},           {"400Gb/s", 50e9},    {"400Gbps", 50e9},
      {"2.5Gb", 312.5e6},        {"1GiB/s", 1 << 30},  {"1000", 1000},
      {"64G", 64.0 * (1 << 30)}, {" 12.5GB ", 12.5e9}, {"8b", 1},
  };
  for (const auto& [text, bandwidth] : cases) {
    EXPECT_THAT(ParseBandwidth(text), IsOkAndHolds(bandwidth)) << text;
  }
}

TEST(UnitsTest, RefusesWhatIsNoBandwidth) {
  for (const std::string text :
       {"", "b", "/s", "GB", "0", "0GB", "-1GB", "fast", "1e9", "1GBb", "inf",
        "nan", "99999999999999999999GB", "1GB/s/s"}) {
    EXPECT_THAT(
        ParseBandwidth(text),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("\"" + text + "\""), HasSubstr("400Gb/s"))))
        << text;
  }
}

TEST(UnitsTest, LatenciesAreTheNearestDouble) {
  const std::vector<std::pair<std::string, double>> cases = {
      {"3.4us", 3.4e-6}, {"500ns", 5e-7},   {"1ms", 1e-3},  {"2s", 2},
      {"0us", 0},        {" 14us ", 14e-6}, {".5ms", 5e-4}, {"1000s", 1000},
  };
  for (const auto& [text, latency] : cases) {
    EXPECT_THAT(ParseLatency(text), IsOkAndHolds(latency)) << text;
  }
}

TEST(UnitsTest, RefusesWhatIsNoLatency) {
  for (const std::string text :
       {"", "us", "5", "-1us", "+1us", "1e-6s", "infs", "nans", "1.2.3us",
        "1001s", "1m", "0x1us", "1 us",
        "00000000000000000000000000000000000000001us"}) {
    EXPECT_THAT(ParseLatency(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("3.4us")))
        << text;
  }
}

}  // namespace
}  // namespace tessera::topology
