// NCCL links: its library is of the release that its header was written for.

#include <nccl.h>

#include "gtest/gtest.h"

namespace {

TEST(NcclLinkTest, LibraryMatchesItsHeader) {
  int version = 0;
  ASSERT_EQ(ncclGetVersion(&version), ncclSuccess);
  EXPECT_EQ(version, NCCL_VERSION_CODE);
}

}  // namespace
