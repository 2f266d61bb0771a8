#include "tools/train/watch/live_place.h"

#include <unistd.h>

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/in_process/in_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LivePlaceTest : public testing::Test {
 protected:
  LivePlaceTest() : pages_(PlacePages::Create(2).value()) {
    AttachPlace(&pages_->page(1));
  }
  ~LivePlaceTest() override { AttachPlace(nullptr); }
  LivePlace Read() const { return ReadPlace(pages_->page(1), 1); }

  std::unique_ptr<PlacePages> pages_;
};

TEST_F(LivePlaceTest, ShowsActionStepAndSource) {
  EnterStep(6);
  const int line = __LINE__ + 1;
  const ActionScope scope(RankAction::kForward, 3);
  const LivePlace place = Read();
  EXPECT_EQ(place.rank, 1);
  EXPECT_EQ(place.pid, getpid());
  EXPECT_EQ(place.step, 6);
  EXPECT_EQ(place.action, RankAction::kForward);
  EXPECT_EQ(place.microbatch, 3);
  EXPECT_THAT(place.file, EndsWith("tools/train/watch/live_place_test.cc"));
  EXPECT_EQ(place.line, line);
  EXPECT_GT(place.since_ns, 0);
  EXPECT_EQ(ReadPlace(pages_->page(0), 0).pid, 0);
}

TEST_F(LivePlaceTest, ReturnsToOuterAction) {
  const ActionScope outer(RankAction::kForward, 3);
  const int64_t line = Read().line;
  { const ActionScope inner(RankAction::kLoadData); }
  EXPECT_EQ(Read().action, RankAction::kForward);
  EXPECT_EQ(Read().microbatch, 3);
  EXPECT_EQ(Read().line, line);
}

TEST_F(LivePlaceTest, IsSharedThroughInheritedDescriptor) {
  const auto other = PlacePages::Open(dup(pages_->fd()), 2).value();
  EnterStep(9);
  EXPECT_EQ(ReadPlace(other->page(1), 1).step, 9);
  EXPECT_THAT(PlacePages::Open(dup(pages_->fd()), 1000),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(LivePlaceTest, LongestStepLeavesOutFirstSteps) {
  const auto pause = [](int ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  };
  EnterStep(0);
  pause(400);
  EnterStep(1);
  pause(400);
  EnterStep(2);
  EXPECT_EQ(Read().longest_step_ns, 0);
  EnterStep(3);
  EXPECT_LT(Read().longest_step_ns, 350'000'000);
  pause(30);
  EnterStep(4);
  EXPECT_GE(Read().longest_step_ns, 20'000'000);
}

TEST_F(LivePlaceTest, ThreadsWithoutPageChangeNothing) {
  std::thread([] {
    EnterStep(5);
    const ActionScope scope(RankAction::kOptimizer);
    EXPECT_EQ(AttachedPlace(), nullptr);
  }).join();
  EXPECT_EQ(Read().step, -1);
  EXPECT_EQ(Read().action, RankAction::kStart);
}

TEST_F(LivePlaceTest, ThreadsMayTakeTurns) {
  std::thread([&] {
    SharePlace(&pages_->page(1));
    const ActionScope scope(RankAction::kBackward, 4);
    EXPECT_EQ(Read().microbatch, 4);
  }).join();
  EXPECT_EQ(Read().action, RankAction::kStart);
  EXPECT_NE(Read().thread, 0);
}

// Rank 1 waits in an all_reduce of a subgroup that rank 0 joins late.
TEST_F(LivePlaceTest, ShowsCollectivesAndWaiting) {
  AttachPlace(nullptr);
  auto engines = collectives::CreateInProcessEngines(2).value();
  const auto body = [&](int64_t rank) {
    AttachPlace(&pages_->page(rank));
    const auto observer =
        std::make_shared<PlaceObserver>(pages_->page(rank), rank);
    collectives::CommunicatorOptions options;
    options.observer = observer;
    const auto world =
        collectives::Communicator::Create(
            std::move(engines[static_cast<size_t>(rank)]), options)
            .value();
    const auto pair = world->Split(0, -rank, "pair").value();
    while (rank == 0) {
      const LivePlace waiting = ReadPlace(pages_->page(1), 1);
      if (waiting.waiting_ns == 0 || waiting.groups.size() != 2 ||
          !waiting.groups[1].runs()) {
        std::this_thread::yield();
        continue;
      }
      EXPECT_EQ(waiting.groups[1].name, "pair");
      EXPECT_EQ(waiting.groups[1].rank, 0);
      EXPECT_EQ(waiting.groups[1].bytes, 12);
      EXPECT_EQ(waiting.groups[1].kind, collectives::OpKind::kAllReduce);
      EXPECT_EQ(waiting.groups[0].ended, 1);
      break;
    }
    std::vector<float> values(3);
    TESSERA_EXPECT_OK(pair->AllReduce(collectives::Buffer(std::span(values)),
                                      collectives::Reduction::Sum()));
    const LivePlace place = ReadPlace(pages_->page(rank), rank);
    EXPECT_EQ(place.waiting_ns, 0);
    EXPECT_EQ(place.groups[1].ended, 1);
    EXPECT_EQ(place.groups[1].id,
              ReadPlace(pages_->page(1 - rank), 1 - rank).groups[1].id);
    EXPECT_THAT(observer->Records(), SizeIs(2));
    TESSERA_EXPECT_OK(world->Barrier());
    AttachPlace(nullptr);
  };
  std::thread other([&] { body(1); });
  body(0);
  other.join();
  EXPECT_THAT(Read().groups, IsEmpty());
}

TEST_F(LivePlaceTest, ShowsRunsOfPreparedOperations) {
  constexpr int64_t kRuns = 100;
  auto engines = collectives::CreateInProcessEngines(2).value();
  const auto body = [&](int64_t rank) {
    AttachPlace(&pages_->page(rank));
    collectives::CommunicatorOptions options;
    options.observer =
        std::make_shared<PlaceObserver>(pages_->page(rank), rank);
    const auto world =
        collectives::Communicator::Create(
            std::move(engines[static_cast<size_t>(rank)]), options)
            .value();
    std::vector<float> values(3);
    const collectives::Buffer buffer{std::span(values)};
    auto sum = world
                   ->Prepare(collectives::AllReduceOf(
                       buffer, buffer, collectives::Reduction::Sum()))
                   .value();
    for (int64_t i = 0; i < kRuns; ++i) TESSERA_EXPECT_OK(sum.Run());
    const GroupPlace passed = ReadPlace(pages_->page(rank), rank).groups[0];
    EXPECT_EQ(passed.ended, kRuns + 1);  // The preparation is an all_gather.
    EXPECT_EQ(passed.begun, kRuns + 1);
    EXPECT_EQ(passed.kind, collectives::OpKind::kAllReduce);
    EXPECT_EQ(passed.bytes, 12);
    // Rank 1 hangs in a run until rank 0 has seen it.
    while (rank == 0) {
      const LivePlace waiting = ReadPlace(pages_->page(1), 1);
      if (waiting.waiting_ns == 0 || waiting.groups[0].begun != kRuns + 2) {
        std::this_thread::yield();
        continue;
      }
      EXPECT_TRUE(waiting.groups[0].runs());
      EXPECT_EQ(waiting.groups[0].name, "world");
      EXPECT_GT(waiting.groups[0].begin_ns, 0);
      break;
    }
    TESSERA_EXPECT_OK(sum.Run());
    EXPECT_EQ(ReadPlace(pages_->page(rank), rank).waiting_ns, 0);
    TESSERA_EXPECT_OK(world->Barrier());
    AttachPlace(nullptr);
  };
  std::thread other([&] { body(1); });
  body(0);
  other.join();
}

// Rank 1 leaves, so that the all_reduce of rank 0 fails.
TEST_F(LivePlaceTest, KeepsPlaceOfFailureUntilGroupsAreDestroyed) {
  AttachPlace(nullptr);
  auto engines = collectives::CreateInProcessEngines(2).value();
  AttachPlace(&pages_->page(0));
  std::vector<std::string> told;
  std::shared_ptr<PlaceObserver> observer;
  observer = std::make_shared<PlaceObserver>(pages_->page(0), 0, [&] {
    told.push_back(
        absl::StrCat(ActionName(observer->place_of_failure()->action), " ",
                     observer->Records().size()));
  });
  collectives::CommunicatorOptions options;
  options.observer = observer;
  options.timeout = absl::Milliseconds(100);
  auto world =
      collectives::Communicator::Create(std::move(engines[0]), options).value();
  {
    const ActionScope scope(RankAction::kOptimizer);
    EXPECT_FALSE(world->Barrier().ok());
  }
  EXPECT_THAT(told, IsEmpty());
  world.reset();
  EXPECT_THAT(told, testing::ElementsAre("optimizer 1"));
}

}  // namespace
}  // namespace tessera::train
