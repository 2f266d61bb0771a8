#include "base/os/unique_fd.h"

#include <fcntl.h>

#include <utility>

#include "gtest/gtest.h"

namespace tessera {
namespace {

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }
int OpenNull() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

TEST(UniqueFdTest, ClosesOwnedDescriptorOnce) {
  const int a = OpenNull(), b = OpenNull();
  {
    UniqueFd first(a), second(b);
    UniqueFd moved(std::move(first));
    EXPECT_FALSE(first.valid());
    EXPECT_EQ(moved.get(), a);
    moved = std::move(second);
    EXPECT_FALSE(IsOpen(a));
    EXPECT_EQ(moved.get(), b);
    UniqueFd& same = moved;
    moved = std::move(same);
    EXPECT_TRUE(IsOpen(b));
  }
  EXPECT_FALSE(IsOpen(b));
}

TEST(UniqueFdTest, ReleasesAndResetsDescriptor) {
  const int a = OpenNull(), b = OpenNull();
  UniqueFd fd(a);
  EXPECT_EQ(fd.Release(), a);
  EXPECT_FALSE(fd.valid());
  EXPECT_TRUE(IsOpen(a));
  fd.Reset(a);
  fd.Reset(b);
  EXPECT_FALSE(IsOpen(a));
  fd.Reset();
  EXPECT_FALSE(IsOpen(b));
  EXPECT_FALSE(UniqueFd().valid());
}

}  // namespace
}  // namespace tessera
