#include "base/device/testing/test_gpu.h"

#include <cstdlib>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr char kVariable[] = "TESSERA_TEST_ARENA_BYTES";

class TestGpuTest : public ::testing::Test {
 protected:
  void SetUp() override { unsetenv(kVariable); }
  void TearDown() override { unsetenv(kVariable); }
};

TEST_F(TestGpuTest, ArenaHasAGibibyteByDefault) {
  EXPECT_THAT(TestArenaBytes(), IsOkAndHolds(size_t{1} << 30));
}

TEST_F(TestGpuTest, ArenaHasTheSizeOfTheEnvironment) {
  setenv(kVariable, "0", 1);
  EXPECT_THAT(TestArenaBytes(), IsOkAndHolds(0));
  setenv(kVariable, "8589934592", 1);
  EXPECT_THAT(TestArenaBytes(), IsOkAndHolds(size_t{8} << 30));
}

TEST_F(TestGpuTest, RejectsInvalidSizes) {
  for (const char* const text :
       {"", "1G", "-1", "1e9", "18446744073709551616"}) {
    SCOPED_TRACE(text);
    setenv(kVariable, text, 1);
    EXPECT_THAT(TestArenaBytes(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("it should be a number of bytes")));
    // Before it looks for a GPU.
    EXPECT_THAT(CreateTestGpu(), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace tessera
