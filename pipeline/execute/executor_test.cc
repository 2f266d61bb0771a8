#include "pipeline/execute/executor.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "pipeline/execute/testing/layer_stack.h"
#include "pipeline/passes/place_parameters.h"
#include "pipeline/schedule/schedule_text.h"

namespace tessera::pipeline {
namespace {

using collectives::Communicator;
using collectives::RunRanks;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Schedule ScheduleOf(std::string_view name, int64_t ranks, int64_t chunks,
                    int64_t microbatches) {
  return *Generate(name, {ranks, chunks, microbatches});
}

TEST(ExecutorTest, RunsLoweredScheduleUnchanged) {
  EXPECT_THAT(
      RunRanks(2,
               [](Communicator& c) -> absl::Status {
                 // In PyTorch's format.
                 TESSERA_ASSIGN_OR_RETURN(
                     const Schedule schedule,
                     ReadCsv("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,"
                             "0B1\n"
                             "1RECV_F0,1F0,1RECV_F1,1F1,1I0,1SEND_B0,1W0,1B1,"
                             "1SEND_B1\n"));
                 TESSERA_RETURN_IF_ERROR(CheckStack<double>(c, schedule));
                 TESSERA_ASSIGN_OR_RETURN(
                     const auto rank,
                     MakeStackRank<double>(c, schedule, ShapeFor(schedule)));
                 EXPECT_EQ(rank.executor->schedule(), schedule);
                 return absl::OkStatus();
               }),
      Each(IsOk()));
}

TEST(ExecutorTest, AnExchangeNeedsNoOrder) {
  // Each rank sends first what the other receives last, so both transfers must
  // run at once. Messages are in place and larger than an engine's buffers.
  const Schedule schedule = *ReadCsv(
      "0F0,0SEND_F0,0F1,(0SEND_F1;0RECV_B0),0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1I0,(1SEND_B0;1RECV_F1),1W0,1F1,1B1,1SEND_B1\n");
  StackShape shape = ShapeFor(schedule);
  shape.rows = 20'000;
  for (const int64_t start_from : {int64_t{1} << 40, int64_t{0}}) {
    EXPECT_THAT(
        RunRanks(2,
                 [&](Communicator& c) -> absl::Status {
                   TESSERA_ASSIGN_OR_RETURN(
                       const auto rank,
                       MakeStackRank<double>(c, schedule, shape,
                                             {.start_from_bytes = start_from}));
                   TESSERA_ASSIGN_OR_RETURN(const StepResult step,
                                            rank.executor->Run());
                   return CheckAgainst(RunSequentially<double>(shape), step,
                                       rank);
                 }),
        Each(IsOk()));
  }
}

TEST(ExecutorTest, DoesNotQueryGivenShapes) {
  class Silent : public LayerStage<double> {
   public:
    using LayerStage::LayerStage;
    absl::StatusOr<TensorSpec> OutputSpec(const TensorSpec*) override {
      return absl::InternalError("nobody should ask");
    }
  };
  EXPECT_THAT(
      RunRanks(3,
               [](Communicator& c) -> absl::Status {
                 const Schedule schedule = ScheduleOf("1f1b", 3, 1, 4);
                 const StackShape shape = ShapeFor(schedule);
                 ExecutorOptions options;
                 for (size_t s = 1; s < 3; ++s) {
                   options.boundaries.push_back(
                       {DType::kF64, {shape.rows, shape.widths[s]}});
                 }
                 const auto rank = static_cast<int32_t>(c.rank().value());
                 Silent stage(shape, rank);
                 TESSERA_ASSIGN_OR_RETURN(
                     const auto executor,
                     Executor::Create(c, schedule, {{rank, &stage}}, options));
                 TESSERA_ASSIGN_OR_RETURN(const StepResult step,
                                          executor->Run());
                 EXPECT_EQ(step.loss, RunSequentially<double>(shape).loss);
                 return absl::OkStatus();
               }),
      Each(IsOk()));
}

// Returns rows of changing width.
class Widening : public Stage {
 public:
  absl::StatusOr<TensorSpec> OutputSpec(const TensorSpec*) override {
    return TensorSpec{DType::kF32, {width}};
  }
  absl::Status Forward(const ForwardPass& pass) override {
    if (pass.output != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(const auto out, pass.output->AsSpan<float>());
      std::fill(out.begin(), out.end(), 1.0f);
      return absl::OkStatus();
    }
    TESSERA_ASSIGN_OR_RETURN(const auto loss, pass.loss->AsSpan<double>());
    loss[0] = static_cast<double>(pass.input->element_count());
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const BackwardPass&) override {
    return absl::OkStatus();
  }
  absl::Status BackwardWeight(const BackwardPass&) override {
    return absl::OkStatus();
  }

  int64_t width = 3;
};

TEST(ExecutorTest, QueriesForgottenShapesAgain) {
  EXPECT_THAT(RunRanks(2,
                       [](Communicator& c) -> absl::Status {
                         const auto rank =
                             static_cast<int32_t>(c.rank().value());
                         Widening stage;
                         TESSERA_ASSIGN_OR_RETURN(
                             const auto executor,
                             Executor::Create(c, ScheduleOf("gpipe", 2, 1, 2),
                                              {{rank, &stage}}));
                         for (const int64_t width : {3, 0, 100'000}) {
                           stage.width = width;
                           executor->ForgetShapes();
                           TESSERA_ASSIGN_OR_RETURN(const StepResult step,
                                                    executor->Run());
                           EXPECT_EQ(step.loss, static_cast<double>(width));
                         }
                         return absl::OkStatus();
                       }),
              Each(IsOk()));
}

TEST(ExecutorTest, MissingLossIsNan) {
  class Silent : public Widening {
   public:
    absl::Status Forward(const ForwardPass&) override {
      return absl::OkStatus();
    }
  };
  EXPECT_THAT(RunRanks(1,
                       [](Communicator& c) -> absl::Status {
                         Silent stage;
                         TESSERA_ASSIGN_OR_RETURN(
                             const auto executor,
                             Executor::Create(c, ScheduleOf("gpipe", 1, 1, 1),
                                              {{0, &stage}}));
                         TESSERA_ASSIGN_OR_RETURN(const StepResult step,
                                                  executor->Run());
                         EXPECT_TRUE(std::isnan(step.loss));
                         return absl::OkStatus();
                       }),
              Each(IsOk()));
}

TEST(ExecutorTest, StartAndFinishAreRun) {
  const Schedule schedule = ScheduleOf("1f1b", 2, 1, 3);
  EXPECT_THAT(
      RunRanks(
          2,
          [&](Communicator& c) -> absl::Status {
            const StackShape shape = ShapeFor(schedule);
            const Reference<double> expected = RunSequentially<double>(shape);
            TESSERA_ASSIGN_OR_RETURN(const auto rank,
                                     MakeStackRank<double>(c, schedule, shape));
            Executor& executor = *rank.executor;
            EXPECT_THAT(executor.Finish(),
                        StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("no step is under way")));
            TESSERA_RETURN_IF_ERROR(executor.Start());
            EXPECT_THAT(executor.StartForward(),
                        StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("call Finish first")));
            TESSERA_ASSIGN_OR_RETURN(const StepResult step, executor.Finish());
            TESSERA_RETURN_IF_ERROR(CheckAgainst(expected, step, rank));
            TESSERA_RETURN_IF_ERROR(executor.StartForward());
            TESSERA_ASSIGN_OR_RETURN(const StepResult forward,
                                     executor.Finish());
            return CheckAgainst(expected, forward, rank);
          }),
      Each(IsOk()));
}

// The first and the last layer share weights.
StackShape TiedShape(const Schedule& schedule) {
  StackShape shape = ShapeFor(schedule);
  shape.widths[0] = shape.widths[shape.widths.size() - 2] = 4;
  shape.widths[1] = shape.widths.back() = shape.layers() == 2 ? 4 : 5;
  return shape;
}

absl::Status CheckTiedStep(Communicator& c, const Schedule& schedule) {
  const StackShape shape = TiedShape(schedule);
  Reference<double> expected = RunSequentially<double>(shape);
  const int32_t last = static_cast<int32_t>(schedule.map.stages()) - 1;
  auto& first_gradient = expected.layers.front().weight_gradient;
  auto& last_gradient = expected.layers.back().weight_gradient;
  for (size_t i = 0; i < first_gradient.size(); ++i) {
    first_gradient[i] = last_gradient[i] = first_gradient[i] + last_gradient[i];
  }
  TESSERA_ASSIGN_OR_RETURN(
      const auto rank,
      MakeStackRank<double>(c, schedule, shape,
                            {.tied = {{"embedding", {0, last}}}}));
  TESSERA_ASSIGN_OR_RETURN(const StepResult step, rank.executor->Run());
  return CheckAgainst(expected, step, rank);
}

TEST(ExecutorTest, SumsGradientsOfTiedWeights) {
  struct Case {
    const char* name;
    int64_t ranks, chunks;
  };
  // The first and last stage on two ranks, on one rank, and on both of two
  // ranks.
  for (const Case& test :
       {Case{"1f1b", 3, 1}, Case{"interleaved_1f1b", 2, 2}, Case{"zb_v", 3, 2},
        Case{"zb_v", 2, 2}, Case{"dualpipe", 2, 1}, Case{"dualpipe", 4, 1},
        Case{"gpipe", 4, 1}}) {
    SCOPED_TRACE(test.name);
    const Schedule schedule = ScheduleOf(test.name, test.ranks, test.chunks, 5);
    EXPECT_THAT(
        RunRanks(test.ranks,
                 [&](Communicator& c) { return CheckTiedStep(c, schedule); }),
        Each(IsOk()));
  }
}

TEST(ExecutorTest, GathersAndReducesParametersAsScheduled) {
  const Schedule placed =
      *PlaceParameters(ScheduleOf("1f1b", 2, 1, 2), {.prefetch = 1});
  EXPECT_THAT(
      RunRanks(2,
               [&](Communicator& c) -> absl::Status {
                 const StackShape shape = ShapeFor(placed);
                 TESSERA_ASSIGN_OR_RETURN(
                     const auto rank, MakeStackRank<double>(c, placed, shape));
                 TESSERA_ASSIGN_OR_RETURN(const StepResult step,
                                          rank.executor->Run());
                 EXPECT_THAT(rank.stages[0]->hooks(),
                             ElementsAre("unshard", "reduce", "reshard"));
                 TESSERA_RETURN_IF_ERROR(
                     CheckAgainst(RunSequentially<double>(shape), step, rank));
                 TESSERA_RETURN_IF_ERROR(rank.executor->RunForward().status());
                 EXPECT_THAT(rank.stages[0]->hooks(),
                             ElementsAre("unshard", "reduce", "reshard",
                                         "unshard", "reshard"));
                 return absl::OkStatus();
               }),
      Each(IsOk()));
}

TEST(ExecutorTest, EvaluationGathersOnlyForForwards) {
  const Schedule schedule = *ReadCsv(
      "0UNSHARD,0F0,0RESHARD,0UNSHARD,0I0,0RESHARD,0UNSHARD,0W0,0RESHARD,"
      "0REDUCE_GRAD\n");
  EXPECT_THAT(
      RunRanks(1,
               [&](Communicator& c) -> absl::Status {
                 TESSERA_ASSIGN_OR_RETURN(
                     const auto rank,
                     MakeStackRank<double>(c, schedule, ShapeFor(schedule)));
                 TESSERA_RETURN_IF_ERROR(rank.executor->RunForward().status());
                 EXPECT_THAT(rank.stages[0]->hooks(),
                             ElementsAre("unshard", "reshard"));
                 return absl::OkStatus();
               }),
      Each(IsOk()));
}

}  // namespace
}  // namespace tessera::pipeline
