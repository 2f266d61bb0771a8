#include "base/status_matchers.h"

#include <string>
#include <vector>

#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

TEST(StatusMatchersTest, IsOk) {
  EXPECT_THAT(absl::OkStatus(), IsOk());
  EXPECT_THAT(absl::NotFoundError("x"), Not(IsOk()));
  EXPECT_THAT(absl::StatusOr<int>(1), IsOk());
  EXPECT_THAT(absl::StatusOr<int>(absl::NotFoundError("x")), Not(IsOk()));
}

TEST(StatusMatchersTest, StatusIsComparesCodeAndMessage) {
  absl::Status status = absl::InvalidArgumentError("axis \"zz\"");
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("zz")));
  EXPECT_THAT(status, Not(StatusIs(absl::StatusCode::kNotFound)));
  EXPECT_THAT(status, Not(StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("yy"))));
}

TEST(StatusMatchersTest, IsOkAndHoldsTakesValuesAndMatchers) {
  EXPECT_THAT(absl::StatusOr<int>(3), IsOkAndHolds(3));
  EXPECT_THAT(absl::StatusOr<int>(3), Not(IsOkAndHolds(4)));
  EXPECT_THAT(absl::StatusOr<std::vector<int>>({1, 2}),
              IsOkAndHolds(SizeIs(2)));
  EXPECT_THAT(absl::StatusOr<int>(absl::NotFoundError("x")),
              Not(IsOkAndHolds(3)));
}

TEST(StatusMatchersTest, AFailureShowsTheStatus) {
  EXPECT_NONFATAL_FAILURE(TESSERA_EXPECT_OK(absl::NotFoundError("lost")),
                          "lost");
  EXPECT_NONFATAL_FAILURE(
      EXPECT_THAT(absl::StatusOr<int>(absl::NotFoundError("lost")),
                  IsOkAndHolds(3)),
      "lost");
}

TEST(StatusMatchersTest, AssertOkAndAssignDeclaresAndAssigns) {
  TESSERA_ASSERT_OK_AND_ASSIGN(int n, absl::StatusOr<int>(3));
  EXPECT_EQ(n, 3);
  TESSERA_ASSERT_OK_AND_ASSIGN(n, absl::StatusOr<int>(4));
  EXPECT_EQ(n, 4);
}

}  // namespace
}  // namespace tessera
