#include "base/status_matchers.h"
#include "collectives/bootstrap/peer_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::HasSubstr;

constexpr char kId[] =
    "3f0c1d2e-0000-4000-8000-0123456789ab:4026531836:4026531840";

TEST(HostIdTest, IsTheSameForThisProcessAlways) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const HostId a, HostId::Self());
  TESSERA_ASSERT_OK_AND_ASSIGN(const HostId b, HostId::Self());
  EXPECT_EQ(a, b);
  EXPECT_LE(a.ToString().size(), 100u);
  EXPECT_THAT(HostId::Parse(a.ToString()), IsOkAndHolds(a));
}

TEST(HostIdTest, TellsMachinesAndNamespacesApart) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const HostId id, HostId::Parse(kId));
  EXPECT_EQ(id.ToString(), kId);
  for (const size_t at : {size_t{0}, size_t{45}, std::string(kId).size() - 1}) {
    std::string other = kId;
    other[at] = other[at] == '1' ? '2' : '1';
    TESSERA_ASSERT_OK_AND_ASSIGN(const HostId other_id, HostId::Parse(other));
    EXPECT_NE(other_id, id) << other;
  }
}

TEST(HostIdTest, RefusesOtherTexts) {
  const std::string id = kId;
  for (const std::string& text :
       {std::string(), std::string("a:1:2"), id + ":3", id + "x", " " + id,
        id.substr(1), std::string(100'000, ':'), "z" + id.substr(1)}) {
    EXPECT_THAT(HostId::Parse(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("is not a host id")));
  }
}

TEST(HostNameTest, IsShort) {
  EXPECT_FALSE(HostName().empty());
  EXPECT_LE(HostName().size(), 64u);
}

}  // namespace
}  // namespace tessera::collectives
