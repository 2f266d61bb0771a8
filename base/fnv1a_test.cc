#include "base/fnv1a.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

// Values of draft-eastlake-fnv, appendix C.
TEST(Fnv1aTest, MatchesPublishedValues) {
  EXPECT_EQ(Fnv1a(""), 0xcbf29ce484222325);
  EXPECT_EQ(Fnv1a("a"), 0xaf63dc4c8601ec8c);
  EXPECT_EQ(Fnv1a("foobar"), 0x85944171f73967e8);
}

}  // namespace
}  // namespace tessera
