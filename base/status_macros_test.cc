#include "base/status_macros.h"

#include <memory>
#include <string>
#include <utility>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<int> Positive(int n) {
  if (n > 0) return n;
  return absl::InvalidArgumentError("not positive");
}

absl::StatusOr<int> Sum(int a, int b) {
  TESSERA_ASSIGN_OR_RETURN(int x, Positive(a));
  TESSERA_ASSIGN_OR_RETURN(const int y, Positive(b), Annotate(_, "b"));
  return x + y;
}

absl::Status Check(int n) {
  TESSERA_RETURN_IF_ERROR(Positive(n).status());
  TESSERA_RETURN_IF_ERROR(Positive(n - 1).status(), Annotate(_, "n - 1"));
  return absl::OkStatus();
}

TEST(StatusMacrosTest, AssignsTheValue) {
  EXPECT_THAT(Sum(1, 2), IsOkAndHolds(3));
}

TEST(StatusMacrosTest, ReturnsOriginalOrAnnotatedError) {
  EXPECT_THAT(Sum(0, 2),
              StatusIs(absl::StatusCode::kInvalidArgument, "not positive"));
  EXPECT_THAT(Sum(1, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, "b: not positive"));
}

TEST(StatusMacrosTest, ReturnIfErrorPassesOkAndStopsAtAnError) {
  EXPECT_THAT(Check(2), IsOk());
  EXPECT_THAT(Check(0),
              StatusIs(absl::StatusCode::kInvalidArgument, "not positive"));
  EXPECT_THAT(Check(1), StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("n - 1: ")));
}

absl::StatusOr<std::unique_ptr<int>> Box(int n) {
  TESSERA_ASSIGN_OR_RETURN(int x, Positive(n));
  return std::make_unique<int>(x);
}

absl::StatusOr<int> Unbox(int n) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<int> box, Box(n));
  return *box;
}

TEST(StatusMacrosTest, MovesNonCopyableValues) {
  EXPECT_THAT(Unbox(5), IsOkAndHolds(5));
}

TEST(AnnotateTest, KeepsOkAndCode) {
  EXPECT_THAT(Annotate(absl::OkStatus(), "x"), IsOk());
  EXPECT_THAT(Annotate(absl::NotFoundError("gone"), "x"),
              StatusIs(absl::StatusCode::kNotFound, "x: gone"));
}

}  // namespace
}  // namespace tessera
