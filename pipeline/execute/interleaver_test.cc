#include "pipeline/execute/interleaver.h"

#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::pipeline {
namespace {

using ::testing::HasSubstr;

class InterleaverTest : public ::testing::Test {
 protected:
  // Writes its name and a digit, and yields, so many times.
  absl::Status Task(char name, int yields) {
    for (int i = 0; i < yields; ++i) {
      absl::StrAppend(&written_, std::string(1, name), i);
      interleaver_.Yield();
    }
    absl::StrAppend(&written_, std::string(1, name), ".");
    return absl::OkStatus();
  }
  std::string Written(int first, int second) {
    written_.clear();
    TESSERA_EXPECT_OK(interleaver_.Run([&] { return Task('a', first); },
                                       [&] { return Task('b', second); }));
    return written_;
  }

  Interleaver interleaver_;
  std::string written_;  // By one task at a time.
};

TEST_F(InterleaverTest, TasksTakeTurns) {
  EXPECT_EQ(Written(0, 0), "a.b.");
  EXPECT_EQ(Written(0, 2), "a.b0b1b.");
  EXPECT_EQ(Written(1, 0), "a0b.a.");
  EXPECT_EQ(Written(2, 2), "a0b0a1b1a.b.");
  EXPECT_EQ(Written(3, 1), "a0b0a1b.a2a.");
  EXPECT_EQ(Written(1, 3), "a0b0a.b1b2b.");
  for (int round = 0; round < 1000; ++round) {
    ASSERT_EQ(Written(2, 2), "a0b0a1b1a.b.");
    ASSERT_EQ(Written(0, 2), "a.b0b1b.");
  }
}

TEST_F(InterleaverTest, YieldOutsideTasksDoesNothing) {
  EXPECT_FALSE(interleaver_.has_other());
  interleaver_.Yield();
  EXPECT_EQ(Written(1, 1), "a0b0a.b.");
  EXPECT_FALSE(interleaver_.has_other());
  interleaver_.Yield();
}

TEST_F(InterleaverTest, ReportsIfOtherTaskIsRunning) {
  TESSERA_EXPECT_OK(interleaver_.Run(
      [&] {
        EXPECT_TRUE(interleaver_.has_other());
        interleaver_.Yield();
        EXPECT_FALSE(interleaver_.has_other());
        return absl::OkStatus();
      },
      [&] {
        EXPECT_TRUE(interleaver_.has_other());
        return absl::OkStatus();
      }));
}

TEST_F(InterleaverTest, EverySwitchIsReportedByPreviousTask) {
  interleaver_.OnSwitch([&] { written_ += "|"; });
  EXPECT_EQ(Written(0, 0), "a.|b.");
  EXPECT_EQ(Written(1, 1), "a0|b0|a.|b.");
  EXPECT_EQ(Written(2, 0), "a0|b.|a1a.");
}

TEST_F(InterleaverTest, ErrorsEndRunButNotInterleaver) {
  const absl::Status lost = absl::InternalError("lost");
  bool has_run = false;
  const auto second = [&] {
    has_run = true;
    return absl::OkStatus();
  };
  EXPECT_EQ(interleaver_.Run([&] { return lost; }, second), lost);
  EXPECT_FALSE(has_run);
  // One that has begun goes on to its end.
  EXPECT_EQ(interleaver_.Run(
                [&] {
                  interleaver_.Yield();
                  return lost;
                },
                [&] { return Task('b', 2); }),
            lost);
  EXPECT_EQ(written_, "b0b1b.");
  EXPECT_EQ(interleaver_.Run([&] { return Task('a', 1); },
                             [&] { return absl::DataLossError("second"); }),
            absl::DataLossError("second"));
  EXPECT_EQ(interleaver_.Run(
                [&] {
                  interleaver_.Yield();
                  return lost;
                },
                [&] { return absl::DataLossError("second"); }),
            lost);
  EXPECT_EQ(Written(1, 1), "a0b0a.b.");
}

TEST_F(InterleaverTest, TheSecondTaskWorksWhileTheFirstHasYielded) {
  std::thread::id first, second;
  TESSERA_EXPECT_OK(interleaver_.Run(
      [&] {
        first = std::this_thread::get_id();
        interleaver_.Yield();
        EXPECT_EQ(std::this_thread::get_id(), first);
        return absl::OkStatus();
      },
      [&] {
        second = std::this_thread::get_id();
        return absl::OkStatus();
      }));
  EXPECT_NE(first, second);
}

}  // namespace
}  // namespace tessera::pipeline
