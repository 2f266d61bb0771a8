// Tests the errors of all ranks when one of them diverges.
#include <atomic>
#include <cmath>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/in_process/in_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "zero3/state/sharded_state.h"
#include "zero3/state/testing/tiers.h"
#include "zero3/state/testing/toy_training.h"

namespace tessera::zero3 {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;

using Body = std::function<absl::Status(ShardedState&, int64_t rank)>;

// Runs `body` on each of `ranks` ranks, with a new state.
std::vector<absl::Status> OnRanks(
    int64_t ranks, const ShardedStateOptions& options, const Body& body,
    const std::function<void(int64_t rank, ShardedStateOptions&)>& adapt =
        [](int64_t, ShardedStateOptions&) {}) {
  auto engines = collectives::CreateInProcessEngines(ranks);
  std::vector<absl::Status> results(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < results.size(); ++r) {
    threads.emplace_back([&, r] {
      auto world = collectives::Communicator::Create(std::move((*engines)[r]));
      ShardedStateOptions own = options;
      adapt(static_cast<int64_t>(r), own);
      auto state = ShardedState::Create(testing::ToyModel(DType::kF32), own,
                                        {.shard = world->get()});
      results[r] =
          state.ok() ? body(**state, static_cast<int64_t>(r)) : state.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

absl::Status Use(ShardedState& state, int64_t id) {
  const ParameterId window[] = {ParameterId(id)};
  TESSERA_RETURN_IF_ERROR(state.Acquire(window));
  return state.Release(window);
}

absl::Status ReduceAll(ShardedState& state) {
  const ModelParameters& model = state.layout().model();
  for (int64_t i = model.group_count(); i-- > 0;) {
    TESSERA_RETURN_IF_ERROR(state.ReduceGradients(model.group(i)));
  }
  return absl::OkStatus();
}

// Parameters 2 and 4 have the same size: only their labels differ.
TEST(ShardedStateFaultTest, ARankThatGathersAnotherParameterIsNotWaitedFor) {
  for (const int64_t other : {3, 4}) {
    const absl::Time start = absl::Now();
    const auto results =
        OnRanks(3, {.stage = 3}, [&](ShardedState& state, int64_t rank) {
          TESSERA_RETURN_IF_ERROR(Use(state, 0));
          return Use(state, rank == 1 ? other : 2);
        });
    for (size_t r = 0; r < 3; ++r) {
      EXPECT_THAT(results[r].message(),
                  HasSubstr(r != 1       ? "layer1.bias"
                            : other == 3 ? "layer2.weight"
                                         : "layer2.bias"));
      EXPECT_THAT(results[r].message(),
                  HasSubstr(other == 3 ? "count" : "label"));
    }
    EXPECT_LT(absl::Now() - start, absl::Seconds(20));
  }
}

TEST(ShardedStateFaultTest, ARankThatReducesAnotherLayerIsNotWaitedFor) {
  const absl::Time start = absl::Now();
  const auto results =
      OnRanks(2, {.stage = 2}, [](ShardedState& state, int64_t rank) {
        const ModelParameters& model = state.layout().model();
        for (const int64_t group : {5, rank == 0 ? 1 : 2}) {
          TESSERA_RETURN_IF_ERROR(state.ReduceGradients(model.group(group)));
        }
        return state.Step().status();
      });
  for (const absl::Status& status : results) EXPECT_FALSE(status.ok());
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
}

TEST(ShardedStateFaultTest, AMissingGradientIsNamedToAll) {
  for (int stage : {0, 1, 2, 3}) {
    EXPECT_THAT(OnRanks(3, {.stage = stage},
                        [](ShardedState& state, int64_t rank) {
                          const ModelParameters& model = state.layout().model();
                          for (const int64_t group : {5, 4, 3, 1, 0}) {
                            TESSERA_RETURN_IF_ERROR(
                                state.ReduceGradients(model.group(group)));
                          }
                          if (rank != 1) {
                            TESSERA_RETURN_IF_ERROR(
                                state.ReduceGradients(model.group(2)));
                          }
                          return state.Step().status();
                        }),
                Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                              AllOf(HasSubstr("rank 1"), HasSubstr("layer2."),
                                    HasSubstr("allow_unused")))));
  }
}

TEST(ShardedStateFaultTest, WhatIsAddedAfterTheReductionIsMissing) {
  EXPECT_THAT(OnRanks(2, {.stage = 2},
                      [](ShardedState& state, int64_t rank) {
                        TESSERA_RETURN_IF_ERROR(ReduceAll(state));
                        if (rank == 0) {
                          TESSERA_RETURN_IF_ERROR(
                              state.Gradient(ParameterId(0)).status());
                        }
                        return state.Step().status();
                      }),
              Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                            AllOf(HasSubstr("rank 0"), HasSubstr("embedding"),
                                  HasSubstr("after it was last added to")))));
}

TEST(ShardedStateFaultTest, WhereAllowedUnusedParametersHaveZeroGradients) {
  for (int stage : {0, 1, 2, 3}) {
    const auto results = OnRanks(
        3, {.stage = stage, .allow_unused = true},
        [](ShardedState& state, int64_t rank) {
          // Each rank uses another parameter; most groups are not used at all.
          const ModelParameters& model = state.layout().model();
          const ParameterId id(rank);
          TESSERA_ASSIGN_OR_RETURN(const TensorView gradient,
                                   state.Gradient(id));
          TESSERA_ASSIGN_OR_RETURN(const auto sums, gradient.AsSpan<float>());
          for (float& x : sums) x = 2;
          TESSERA_RETURN_IF_ERROR(state.ReduceGradients(model.group(1)));
          TESSERA_RETURN_IF_ERROR(state.ReduceGradients(model.group(0)));
          TESSERA_ASSIGN_OR_RETURN(const UpdateReport report, state.Step());
          double squares = 0;
          for (int64_t i = 0; i < 3; ++i) {
            squares += 4. * static_cast<double>(model[ParameterId(i)].elements);
          }
          return std::abs(report.gradient_norm - std::sqrt(squares)) < 1e-9
                     ? absl::OkStatus()
                     : absl::InternalError(
                           absl::StrCat("a norm of ", report.gradient_norm));
        });
    EXPECT_THAT(results, Each(IsOk()));
  }
}

// A rank that leaves is named long before any deadline.
TEST(ShardedStateFaultTest, ARankThatLeavesIsNamedToAll) {
  const absl::Time start = absl::Now();
  const auto results =
      OnRanks(3, {.stage = 3}, [](ShardedState& state, int64_t rank) {
        TESSERA_RETURN_IF_ERROR(Use(state, 0));
        if (rank == 2) return absl::CancelledError("I am off");
        return Use(state, 1);
      });
  for (size_t r : {0, 1}) {
    EXPECT_THAT(results[r],
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 2")));
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
}

TEST(ShardedStateFaultTest, ARankThatDiesBeforeAGatherIsNamedToAll) {
  const absl::Time start = absl::Now();
  const auto results =
      OnRanks(4, {.stage = 3}, [](ShardedState& state, int64_t rank) {
        for (int step = 0; step < 3; ++step) {
          TESSERA_RETURN_IF_ERROR(Use(state, 0));
          if (step == 2 && rank == 1) {
            return absl::CancelledError("I am off");
          }
          TESSERA_RETURN_IF_ERROR(Use(state, 1));
          TESSERA_RETURN_IF_ERROR(ReduceAll(state));
          TESSERA_RETURN_IF_ERROR(state.Step().status());
        }
        return absl::OkStatus();
      });
  for (size_t r : {0, 2, 3}) {
    EXPECT_THAT(results[r],
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1")));
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
}

// The failing rank stays until the others have its error.
TEST(ShardedStateFaultTest, ARankWhoseTierFailsTellsAllWhy) {
  for (const bool in_step : {false, true}) {
    testing::FarTier far;
    std::atomic<int> told = 0;
    const auto results = OnRanks(
        3, {.stage = 3},
        [&](ShardedState& state, int64_t rank) {
          absl::Status status;
          for (int step = 0; step < 3 && status.ok(); ++step) {
            if (step == 1 && rank == 1) far.is_full = true;
            status.Update(Use(state, 0));
            if (status.ok()) status.Update(ReduceAll(state));
            if (status.ok()) status.Update(state.Step().status());
          }
          ++told;
          while (told < 3) absl::SleepFor(absl::Milliseconds(1));
          return status;
        },
        [&](int64_t rank, ShardedStateOptions& options) {
          if (rank != 1) return;
          (in_step ? options.optimizer_tier : options.gradient_tier) = &far;
        });
    EXPECT_THAT(results[1], StatusIs(absl::StatusCode::kResourceExhausted,
                                     HasSubstr("far: no room for")));
    for (size_t r : {0, 2}) {
      EXPECT_THAT(results[r], StatusIs(absl::StatusCode::kAborted,
                                       AllOf(HasSubstr("rank 1"),
                                             HasSubstr("far: no room for"))));
    }
  }
}

TEST(ShardedStateFaultTest, RefusalsOfACallLeaveTheStateWhole) {
  EXPECT_THAT(
      OnRanks(2, {.stage = 3},
              [](ShardedState& state, int64_t) {
                const ParameterId one[] = {ParameterId(1)};
                EXPECT_THAT(state.Value(ParameterId(1)).status(),
                            StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("is not gathered")));
                EXPECT_THAT(state.Value(ParameterId(99)).status(),
                            StatusIs(absl::StatusCode::kInvalidArgument));
                EXPECT_THAT(state.Release(one),
                            StatusIs(absl::StatusCode::kFailedPrecondition));
                TESSERA_RETURN_IF_ERROR(state.Acquire(one));
                EXPECT_THAT(state.Step().status(),
                            StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("still gathered")));
                EXPECT_THAT(state.Gradient(ParameterId(7)).status(),
                            StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("frozen")));
                const ParameterId outside[] = {ParameterId(99)};
                EXPECT_THAT(state.ReduceGradients(outside),
                            StatusIs(absl::StatusCode::kInvalidArgument));
                EXPECT_THAT(
                    state.ReduceGradients(one),
                    StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("reduce all of a group at once")));
                EXPECT_THAT(state.SetLearningRate(-1),
                            StatusIs(absl::StatusCode::kInvalidArgument));
                TESSERA_RETURN_IF_ERROR(state.Release(one));
                TESSERA_RETURN_IF_ERROR(ReduceAll(state));
                return state.Step().status();
              }),
      Each(IsOk()));
}

TEST(ShardedStateFaultTest, WholeGradientsAreReducedOnceAStep) {
  EXPECT_THAT(OnRanks(2, {.stage = 1},
                      [](ShardedState& state, int64_t) {
                        TESSERA_RETURN_IF_ERROR(ReduceAll(state));
                        EXPECT_THAT(
                            state.Gradient(ParameterId(0)).status(),
                            StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("after the last")));
                        return state.Step().status();
                      }),
              Each(IsOk()));
}

}  // namespace
}  // namespace tessera::zero3
