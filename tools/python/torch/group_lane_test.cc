#include "tools/python/torch/group_lane.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace tessera::torch_backend {
namespace {

using std::chrono::seconds;
using Clock = GroupLane::Clock;

// A lane with a log of the collectives that it ran, and collectives as a
// backend runs them.
class GroupLaneTest : public ::testing::Test {
 protected:
  ~GroupLaneTest() override {
    EXPECT_TRUE(lane_->AwaitIdle(Clock::now() + seconds(20)));
    lane_->Close();
  }

  // A collective that waits for `gate`, and then has callbacks.
  std::shared_future<void> Launch(const std::string& name,
                                  std::function<void()> callbacks = nullptr,
                                  std::shared_future<void> gate = {},
                                  uint64_t* number = nullptr) {
    const auto done = std::make_shared<std::promise<void>>();
    const uint64_t taken = GroupLane::Now() + 1;
    const auto run = [=, this] {
      if (gate.valid()) gate.wait();
      log_ += name;
      done->set_value();
      return GroupLane::Callbacks{callbacks, taken};
    };
    if (lane_->IsInCallback() && lane_->TryEnter()) {
      run();
      lane_->Leave();
    } else {
      const uint64_t pushed = lane_->Push(run);
      if (number != nullptr) *number = pushed;
    }
    return done->get_future().share();
  }

  std::string Log() {
    EXPECT_TRUE(lane_->AwaitIdle(Clock::now() + seconds(20)));
    return log_;
  }

  std::promise<void> open_;
  const std::shared_future<void> gate_ = open_.get_future().share();
  std::string log_;  // Written by the thread that holds the lane.
  const std::shared_ptr<GroupLane> lane_ = GroupLane::Create();
};

TEST_F(GroupLaneTest, RunsJobsInOrder) {
  for (const char* name : {"a", "b", "c", "d"}) Launch(name);
  EXPECT_EQ(Log(), "abcd");
}

TEST_F(GroupLaneTest, CallersShareTheLaneWithJobs) {
  ASSERT_TRUE(lane_->TryEnter());
  EXPECT_FALSE(lane_->TryEnter());
  const auto later = Launch("a");
  EXPECT_EQ(later.wait_for(std::chrono::milliseconds(20)),
            std::future_status::timeout);
  EXPECT_FALSE(lane_->AwaitIdle(Clock::now()));
  lane_->Leave();
  EXPECT_EQ(Log(), "a");
}

TEST_F(GroupLaneTest, CollectivesOfCallbacksPrecedeLaterOnes) {
  Launch(
      "a",
      [this] {
        Launch("b").wait();
        Launch("c").wait();
      },
      gate_);
  Launch("d", [this] { Launch("e").wait(); });
  Launch("f");
  open_.set_value();
  EXPECT_EQ(Log(), "abcdef");
}

TEST_F(GroupLaneTest, CallbacksFollowCollectivesLaunchedBeforeTheyWereAdded) {
  const uint64_t all = GroupLane::Now() + 3;
  for (const std::string name : {"a", "b", "c"}) {
    lane_->Push([=, this] {
      gate_.wait();
      log_ += name;
      return GroupLane::Callbacks{[=, this] { Launch(name + "!").wait(); },
                                  all};
    });
  }
  Launch("d");
  open_.set_value();
  EXPECT_EQ(Log(), "abca!b!c!d");
}

TEST_F(GroupLaneTest, CallbacksMayWaitForEarlierAndLaterJobs) {
  std::shared_future<void> later;
  uint64_t number = 0;
  Launch(
      "a",
      [&] {
        lane_->BeforeWait(number);
        later.wait();
        Launch("c").wait();
      },
      gate_);
  later = Launch("b", nullptr, {}, &number);
  const auto begin = Clock::now();
  open_.set_value();
  EXPECT_EQ(Log(), "abc");
  EXPECT_LT(Clock::now() - begin, GroupLane::kPatience);
}

TEST_F(GroupLaneTest, StuckCallbackDelaysLaterJobsForALimitedTime) {
  std::promise<void> end;
  Launch("a", [&] { end.get_future().wait(); });
  EXPECT_EQ(Launch("b").wait_for(GroupLane::kPatience + seconds(10)),
            std::future_status::ready);
  end.set_value();
  EXPECT_EQ(Log(), "ab");
}

TEST_F(GroupLaneTest, CollectivesOfCallbacksDoNotUseUpItsTime) {
  Launch(
      "a",
      [this] {
        Launch("b", nullptr,
               std::async(std::launch::async,
                          [] {
                            std::this_thread::sleep_for(
                                GroupLane::kPatience +
                                std::chrono::milliseconds(200));
                          })
                   .share())
            .wait();
        Launch("c").wait();
      },
      gate_);
  Launch("d");
  open_.set_value();
  EXPECT_EQ(Log(), "abcd");
}

TEST_F(GroupLaneTest, CallbacksOfTwoLanesMayWaitForEachOther) {
  const std::shared_ptr<GroupLane> other = GroupLane::Create();
  std::promise<void> here, there;
  Launch("a", [&] {
    here.set_value();
    there.get_future().wait();
    std::promise<void> done;
    other->Push([&] {
      done.set_value();
      return GroupLane::Callbacks();
    });
    done.get_future().wait();
  });
  other->Push([&] {
    return GroupLane::Callbacks{[&] {
                                  there.set_value();
                                  here.get_future().wait();
                                  Launch("b").wait();
                                },
                                GroupLane::Now()};
  });
  EXPECT_TRUE(other->AwaitIdle(Clock::now() + seconds(20)));
  EXPECT_EQ(Log(), "ab");
  other->Close();
}

TEST_F(GroupLaneTest, CallbackMayCloseTheLane) {
  std::promise<void> done;
  std::shared_ptr<GroupLane> lane = GroupLane::Create();
  lane->Push([&] {
    return GroupLane::Callbacks{[&] {
                                  EXPECT_TRUE(lane->AwaitIdle(Clock::now()));
                                  lane->Close();
                                  lane = nullptr;
                                  done.set_value();
                                },
                                GroupLane::Now()};
  });
  done.get_future().wait();
}

TEST_F(GroupLaneTest, OrderIsTheSameInRandomPrograms) {
  // The order of collectives is that of the program, no matter how early
  // callbacks run.
  for (int round = 0; round < 50; ++round) {
    std::string expected;
    for (int i = 0; i < 20; ++i) {
      const std::string name(1, static_cast<char>('a' + i));
      expected += name;
      if ((round + i) % 3 == 0) {
        Launch(name);
        continue;
      }
      expected += "1";
      Launch(name, [this] { Launch("1").wait(); });
      if ((round * 7 + i) % 5 == 0) std::this_thread::yield();
    }
    EXPECT_EQ(Log(), expected);
    log_.clear();
  }
}

}  // namespace
}  // namespace tessera::torch_backend
