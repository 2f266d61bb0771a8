#include "offload/file/file_space.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <utility>

#include "base/os/unique_fd.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kUnit = FileSpace::kUnit;

UniqueFd Scratch() {
  return UniqueFd(open(testing::TempDir().c_str(), O_TMPFILE | O_RDWR, 0600));
}

int64_t SizeOf(const UniqueFd& fd) {
  struct stat info = {};
  fstat(fd.get(), &info);
  return info.st_size;
}

TEST(FileSpaceTest, AllocatesOnTheDeviceAndUsesFreedSpaceAgain) {
  const UniqueFd fd = Scratch();
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto space, FileSpace::Create(fd.get(), "f", {.growth_bytes = 0}));
  TESSERA_ASSERT_OK_AND_ASSIGN(auto a, space->Allocate(1));
  TESSERA_ASSERT_OK_AND_ASSIGN(auto b, space->Allocate(kUnit + 1));
  EXPECT_EQ(a->offset(), 0);
  EXPECT_EQ(b->offset(), kUnit);
  EXPECT_EQ(SizeOf(fd), 3 * kUnit);
  a.reset();
  TESSERA_ASSERT_OK_AND_ASSIGN(auto c, space->Allocate(100));
  EXPECT_EQ(c->offset(), 0);
  EXPECT_EQ(SizeOf(fd), 3 * kUnit);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto none, space->Allocate(0));
  EXPECT_EQ(none->bytes(), 0);
  EXPECT_EQ(SizeOf(fd), 3 * kUnit);
}

TEST(FileSpaceTest, DoesNotGrowWithoutBoundUnderChurn) {
  const UniqueFd fd = Scratch();
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto space, FileSpace::Create(fd.get(), "f", {.growth_bytes = kUnit}));
  std::mt19937_64 random(1);
  std::deque<std::shared_ptr<const FileExtent>> held;
  for (int i = 0; i < 5000; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        auto extent,
        space->Allocate(static_cast<int64_t>(random() % 64) * kUnit));
    held.push_back(std::move(extent));
    if (held.size() > 20) held.erase(held.begin() + random() % held.size());
  }
  // 20 blocks of 32 units on average.
  EXPECT_LT(space->file_bytes(), 2 * 20 * 63 * kUnit);
}

TEST(FileSpaceTest, TheLargestSizeIsKept) {
  const UniqueFd fd = Scratch();
  TESSERA_ASSERT_OK_AND_ASSIGN(auto space,
                               FileSpace::Create(fd.get(), "f",
                                                 {.initial_bytes = 2 * kUnit,
                                                  .growth_bytes = 1 << 20,
                                                  .max_bytes = 4 * kUnit}));
  EXPECT_EQ(SizeOf(fd), 2 * kUnit);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto a, space->Allocate(3 * kUnit));
  EXPECT_EQ(SizeOf(fd), 4 * kUnit);
  EXPECT_THAT(space->Allocate(2 * kUnit),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("file f"),
                             HasSubstr("exceed its largest size of 16384"))));
  TESSERA_EXPECT_OK(space->Allocate(kUnit));
}

TEST(FileSpaceTest, NamesFullDeviceAndChangesNothing) {
  const UniqueFd fd = Scratch();
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto space,
      FileSpace::Create(fd.get(), "/d/f", {.growth_bytes = 1 << 20}));
  signal(SIGXFSZ, SIG_IGN);
  rlimit old = {};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small = {4 * kUnit, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  // The full growth step does not fit, but the required space does.
  auto fits = space->Allocate(3 * kUnit);
  auto full = space->Allocate(2 * kUnit);
  setrlimit(RLIMIT_FSIZE, &old);
  TESSERA_EXPECT_OK(fits);
  EXPECT_THAT(full,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("allocation of 8192 bytes at offset 12288 of "
                                 "file /d/f")));
  EXPECT_EQ(space->file_bytes(), 3 * kUnit);
  TESSERA_EXPECT_OK(space->Allocate(2 * kUnit));
}

TEST(FileSpaceTest, RejectsBadOptionsAndSizes) {
  const UniqueFd fd = Scratch();
  EXPECT_THAT(FileSpace::Create(fd.get(), "f", {.initial_bytes = -1}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(
      FileSpace::Create(fd.get(), "f", {.initial_bytes = 2, .max_bytes = 1}),
      StatusIs(absl::StatusCode::kInvalidArgument));
  TESSERA_ASSERT_OK_AND_ASSIGN(auto space,
                               FileSpace::Create(fd.get(), "f", {}));
  for (int64_t bytes : {int64_t{-1}, INT64_MAX}) {
    EXPECT_THAT(space->Allocate(bytes),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace tessera::offload
