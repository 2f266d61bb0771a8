// Needs OpenSSL; skipped if the build has none.
#include "absl/strings/escaping.h"
#include "base/status_matchers.h"
#include "collectives/channel/job_secret.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::HasSubstr;

std::string Hex(std::string_view digits) {
  return absl::HexStringToBytes(digits);
}

// RFC 5869, appendices A.1 and A.3.
TEST(HkdfTest, MatchesStandardTestVectors) {
  EXPECT_THAT(
      HkdfSha256(std::string(22, '\x0b'), Hex("000102030405060708090a0b0c"),
                 Hex("f0f1f2f3f4f5f6f7f8f9"), 42),
      IsOkAndHolds(Hex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a"
                       "4c5db02d56ecc4c5bf34007208d5b887185865")));
  EXPECT_THAT(HkdfSha256(std::string(22, '\x0b'), "", "", 42),
              IsOkAndHolds(Hex("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee187"
                               "9ec3454e5f3c738d2d9d201395faa4b61a96c8")));
}

TEST(HkdfTest, RejectsInvalidSizes) {
  EXPECT_THAT(HkdfSha256("s", "", "", 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not 0")));
  EXPECT_THAT(HkdfSha256("s", "", "", 8161),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace tessera::collectives
