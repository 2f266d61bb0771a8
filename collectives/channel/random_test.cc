#include <set>

#include "base/status_matchers.h"
#include "collectives/channel/job_secret.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

TEST(RandomTest, GivesAsMuchAsAskedAndNeverTheSame) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string bytes, RandomBytes(16));
    EXPECT_EQ(bytes.size(), 16u);
    EXPECT_TRUE(seen.insert(bytes).second);
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string large, RandomBytes(100'000));
  EXPECT_EQ(std::set<char>(large.begin(), large.end()).size(), 256u);
  EXPECT_THAT(RandomBytes(0), IsOkAndHolds(std::string()));
}

TEST(RandomTest, HexHasTwoDigitsForAByte) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string hex, RandomHex(32));
  EXPECT_EQ(hex.size(), 64u);
  EXPECT_EQ(hex.find_first_not_of("0123456789abcdef"), std::string::npos);
}

TEST(SecretsEqualTest, ComparesEveryByte) {
  const std::string secret = std::string("0123\0 4567", 10);
  EXPECT_TRUE(SecretsEqual(secret, secret));
  EXPECT_TRUE(SecretsEqual("", ""));
  for (size_t i = 0; i < secret.size(); ++i) {
    std::string other = secret;
    other[i] = static_cast<char>(other[i] ^ 0x80);
    EXPECT_FALSE(SecretsEqual(secret, other)) << i;
    EXPECT_FALSE(SecretsEqual(secret, secret.substr(0, i))) << i;
  }
}

}  // namespace
}  // namespace tessera::collectives
