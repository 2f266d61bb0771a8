// The example's engine passes the conformance suite when created by name.
#include <functional>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "collectives/bootstrap/in_process_store.h"
#include "collectives/communicator.h"
#include "collectives/engine/engine_registry.h"
#include "collectives/testing/engine_checks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

void OnRanks(int64_t ranks,
             const std::function<void(std::unique_ptr<Engine>)>& body) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto stores, MakeInProcessStores(ranks));
  std::vector<std::thread> threads;
  for (int64_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          auto engine,
          CreateEngine("sockets", {.rank = Rank(r),
                                   .size = ranks,
                                   .store = stores[size_t(r)].get()}));
      body(std::move(engine));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(CustomEngineTest, HasEveryCollectiveByAlgorithms) {
  for (int64_t ranks = 1; ranks <= 5; ++ranks) {
    OnRanks(ranks, [](std::unique_ptr<Engine> engine) {
      CheckCollectives(*engine,
                       {.counts = {0, 1, 77}, .large_counts = {20'001}});
      CheckMessages(*engine);
    });
  }
}

TEST(CustomEngineTest, ServesACommunicatorAndItsSubgroups) {
  OnRanks(4, [](std::unique_ptr<Engine> engine) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto communicator,
                                 Communicator::Create(std::move(engine)));
    std::vector<float> values(1000, 1.5f);
    ASSERT_THAT(communicator->AllReduce(Buffer(std::span<float>(values)),
                                        Reduction::Sum()),
                IsOk());
    EXPECT_THAT(values, Each(6.0f));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const auto half,
        communicator->Split(communicator->rank().value() % 2, 0));
    ASSERT_THAT(
        half->AllReduce(Buffer(std::span<float>(values)), Reduction::Sum()),
        IsOk());
    EXPECT_THAT(values, Each(12.0f));
    // No rank leaves while others still work.
    ASSERT_THAT(communicator->Barrier(), IsOk());
  });
}

TEST(CustomEngineTest, ReportsAbortAndMismatch) {
  for (const bool collective : {false, true}) {
    OnRanks(3, [&](std::unique_ptr<Engine> engine) {
      CheckAbort(*engine, collective, /*reaches_peers=*/true);
    });
    OnRanks(3, [&](std::unique_ptr<Engine> engine) {
      CheckMismatch(*engine, /*collective=*/false);
    });
  }
}

TEST(CustomEngineTest, RequiresStoreAndRejectsUnknownOptions) {
  EXPECT_THAT(
      CreateEngine("sockets", {}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("needs a store")));
  EXPECT_THAT(CreateEngine("sockets", {.options = {{"port", "1"}}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected timeout")));
}

}  // namespace
}  // namespace tessera::collectives
