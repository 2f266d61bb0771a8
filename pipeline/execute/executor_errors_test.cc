// Tests which errors ranks report, and how soon.
#include <string>

#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "pipeline/execute/executor.h"
#include "pipeline/execute/testing/layer_stack.h"
#include "pipeline/passes/place_parameters.h"
#include "pipeline/schedule/schedule_text.h"

namespace tessera::pipeline {
namespace {

using collectives::Communicator;
using collectives::RunRanks;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

Schedule OneFOneB(int64_t ranks, int64_t microbatches) {
  return *Generate("1f1b", {ranks, 1, microbatches});
}

auto Refuses(const std::string& part) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(part));
}

// Fails or stalls on request.
class TestStage : public LayerStage<double> {
 public:
  using LayerStage::LayerStage;

  absl::Status Forward(const ForwardPass& pass) override {
    TESSERA_RETURN_IF_ERROR(At(ActionKind::kForward, pass.microbatch));
    return LayerStage::Forward(pass);
  }
  absl::Status BackwardInput(const BackwardPass& pass) override {
    TESSERA_RETURN_IF_ERROR(At(ActionKind::kBackwardInput, pass.microbatch));
    return LayerStage::BackwardInput(pass);
  }
  absl::Status BackwardWeight(const BackwardPass& pass) override {
    TESSERA_RETURN_IF_ERROR(At(ActionKind::kBackwardWeight, pass.microbatch));
    return LayerStage::BackwardWeight(pass);
  }
  absl::Status ReduceGradient() override {
    TESSERA_RETURN_IF_ERROR(At(ActionKind::kReduceGradient, kNoMicroBatch));
    return LayerStage::ReduceGradient();
  }

  Action where = {};
  absl::Duration late = absl::ZeroDuration();

 private:
  absl::Status At(ActionKind kind, int32_t microbatch) const {
    if (kind != where.kind || microbatch != where.microbatch) {
      return absl::OkStatus();
    }
    if (late == absl::ZeroDuration()) {
      return absl::DataLossError("the weights are gone");
    }
    absl::SleepFor(late);
    return absl::OkStatus();
  }
};

// Runs a step in which one rank's stage fails or stalls in `where`.
std::vector<absl::Status> RunWith(int64_t ranks, int64_t wrong,
                                  const Action& where, absl::Duration late,
                                  const ExecutorOptions& options) {
  const Schedule schedule = *PlaceParameters(OneFOneB(ranks, 4));
  return RunRanks(ranks, [&](Communicator& c) -> absl::Status {
    const auto rank = static_cast<int32_t>(c.rank().value());
    TestStage stage(ShapeFor(schedule), rank);
    stage.where.microbatch = 1000;
    if (rank == wrong) stage.where = where;
    stage.late = late;
    TESSERA_ASSIGN_OR_RETURN(
        const auto executor,
        Executor::Create(c, schedule, {{rank, &stage}}, options));
    const absl::Status status = executor->Run().status();
    if (!status.ok()) {
      EXPECT_THAT(executor->Run(),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           AllOf(HasSubstr("accepts no further work"),
                                 HasSubstr(std::string(status.message())))));
    }
    return status;
  });
}

TEST(ExecutorErrorsTest, EveryRankReportsFailedStage) {
  for (const int64_t start_from : {0, 1 << 20}) {
    for (const ActionKind kind :
         {ActionKind::kForward, ActionKind::kBackwardInput,
          ActionKind::kBackwardWeight}) {
      const absl::Time begin = absl::Now();
      const auto statuses = RunWith(4, 2, {kind, 2, 1}, absl::ZeroDuration(),
                                    {.start_from_bytes = start_from});
      EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
      const std::string action = kind == ActionKind::kForward ? "2F1" : "2B1";
      EXPECT_THAT(statuses[2],
                  StatusIs(absl::StatusCode::kDataLoss,
                           AllOf(HasSubstr("rank 2, action "),
                                 HasSubstr("(" + action +
                                           "): stage 2, "
                                           "micro-batch 1: the weights are "
                                           "gone"))));
      for (const size_t rank : {0, 1, 3}) {
        EXPECT_THAT(statuses[rank],
                    StatusIs(absl::StatusCode::kAborted,
                             AllOf(HasSubstr("rank " + std::to_string(rank)),
                                   HasSubstr("aborted on rank 2"),
                                   HasSubstr("(" + action + ")"),
                                   HasSubstr("the weights are gone"))))
            << "rank " << rank;
      }
    }
  }
}

TEST(ExecutorErrorsTest, EveryRankReportsFailureAfterLastMicroBatch) {
  const auto statuses =
      RunWith(3, 1, {ActionKind::kReduceGradient, 1}, absl::ZeroDuration(), {});
  EXPECT_THAT(statuses[1],
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("(1REDUCE_GRAD): stage 1: the weights")));
  for (const size_t rank : {0, 2}) {
    EXPECT_THAT(statuses[rank], StatusIs(absl::StatusCode::kAborted,
                                         HasSubstr("the weights are gone")));
  }
}

TEST(ExecutorErrorsTest, NamesLateRankAtDeadline) {
  for (const int64_t start_from : {0, 1 << 20}) {
    const auto statuses = RunWith(
        3, 1, {ActionKind::kForward, 1, 2}, absl::Seconds(1),
        {.timeout = absl::Milliseconds(200), .start_from_bytes = start_from});
    // At least one rank times out itself; others may report its error.
    int deadlines = 0;
    for (const size_t rank : {0, 2}) {
      EXPECT_FALSE(statuses[rank].ok());
      EXPECT_THAT(statuses[rank].message(), HasSubstr("rank 1"));
      EXPECT_THAT(statuses[rank].message(), HasSubstr("micro-batch"));
      EXPECT_THAT(statuses[rank].message(), HasSubstr("stage"));
      deadlines += absl::IsDeadlineExceeded(statuses[rank]) ? 1 : 0;
    }
    EXPECT_GE(deadlines, 1);
    EXPECT_FALSE(statuses[1].ok());
  }
}

TEST(ExecutorErrorsTest, NamesRanksWithDifferentSchedules) {
  for (const int64_t odd : {0, 1, 2}) {
    const auto statuses = RunRanks(3, [&](Communicator& c) -> absl::Status {
      const Schedule schedule = c.rank().value() == odd
                                    ? *Generate("gpipe", {3, 1, 4})
                                    : OneFOneB(3, 4);
      const absl::Status status =
          MakeStackRank<double>(c, schedule, ShapeFor(schedule)).status();
      EXPECT_THAT(c.Barrier(), IsOk());  // The group is still usable.
      return status;
    });
    EXPECT_THAT(
        statuses,
        Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                      HasSubstr("different schedules or options: rank " +
                                std::to_string(odd) + " differs from rank"))));
  }
}

TEST(ExecutorErrorsTest, NamesRanksWithDifferentOptions) {
  const Schedule schedule = OneFOneB(2, 2);
  const auto statuses = RunRanks(2, [&](Communicator& c) {
    return MakeStackRank<double>(c, schedule, ShapeFor(schedule),
                                 {.trace = c.rank().value() == 0})
        .status();
  });
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                            HasSubstr("rank 1 differs from rank 0"))));
}

TEST(ExecutorErrorsTest, NamesRankWithoutExecutor) {
  const Schedule schedule = OneFOneB(3, 2);
  const auto statuses = RunRanks(3, [&](Communicator& c) -> absl::Status {
    const auto rank = static_cast<int32_t>(c.rank().value());
    LayerStage<double> stage(ShapeFor(schedule), 0);
    const absl::Status status =
        Executor::Create(c, schedule, {{rank == 1 ? 2 : rank, &stage}})
            .status();
    EXPECT_THAT(c.Barrier(), IsOk());
    return status;
  });
  EXPECT_THAT(statuses[1], Refuses("rank 1: stage 2 is given, but it is on "
                                   "another rank; the rank holds stage 1"));
  for (const size_t rank : {0, 2}) {
    EXPECT_THAT(
        statuses[rank],
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 HasSubstr("rank 1 has no executor: stage 2 is given")));
  }
}

// The status of Create on one rank.
absl::Status Created(const Schedule& schedule,
                     const std::vector<StageBinding>& stages,
                     const ExecutorOptions& options = {}) {
  return RunRanks(1, [&](Communicator& c) {
    return Executor::Create(c, schedule, stages, options).status();
  })[0];
}

TEST(ExecutorErrorsTest, CreateRejectsInvalidArguments) {
  const Schedule schedule = *ReadCsv("0F0,1F0,1B0,0B0\n");
  LayerStage<double> a(ShapeFor(schedule), 0);
  LayerStage<double> b(ShapeFor(schedule), 1);
  const std::vector<StageBinding> both = {{1, &b}, {0, &a}};
  EXPECT_THAT(Created(schedule, both), IsOk());
  EXPECT_THAT(Created(schedule, {{0, &a}}), Refuses("stage 1 is not given"));
  EXPECT_THAT(Created(schedule, {{0, &a}, {0, &b}}),
              Refuses("stage 0 is given twice"));
  EXPECT_THAT(Created(schedule, {{0, &a}, {1, nullptr}}),
              Refuses("stage 1 is null"));
  EXPECT_THAT(
      Created(schedule, {{0, &a}, {7, &b}}),
      Refuses("stage 7 is given, but it is on another rank; the rank holds "
              "stages 0, 1"));
  EXPECT_THAT(Created(OneFOneB(2, 2), both),
              Refuses("a schedule of 2 ranks for a group of 1"));
  EXPECT_THAT(Created(*ReadCsv("0F0,1F0,0B0,1B0\n"), both),
              Refuses("(0B0) waits for rank 0, action 3 (1B0)"));
  EXPECT_THAT(Created(schedule, both, {.timeout = absl::ZeroDuration()}),
              Refuses("a timeout of 0"));
  EXPECT_THAT(Created(schedule, both, {.receives_ahead = -1}),
              Refuses("receives_ahead -1"));
  EXPECT_THAT(Created(schedule, both, {.sends_in_flight = 0}),
              Refuses("sends_in_flight 0"));
  EXPECT_THAT(Created(schedule, both, {.boundaries = {{}, {}}}),
              Refuses("2 boundaries between 2 stages; give all 1"));
  EXPECT_THAT(Created(schedule, both, {.boundaries = {{DType::kF32, {-1}}}}),
              Refuses("the output of stage 0"));
  EXPECT_THAT(Created(schedule, both, {.tied = {{"", {0, 1}}}}),
              Refuses("have no name"));
  EXPECT_THAT(Created(schedule, both, {.tied = {{"e", {0, 1}}, {"e", {0, 1}}}}),
              Refuses("\"e\" are named twice"));
  EXPECT_THAT(Created(schedule, both, {.tied = {{"e", {1, 1}}}}),
              Refuses("2 stages, 1 different"));
  EXPECT_THAT(Created(schedule, both, {.tied = {{"e", {0, 2}}}}),
              Refuses("there are stages 0 to 1"));
}

// Implements only the required methods of a stage.
class Bare : public Stage {
 public:
  absl::Status Forward(const ForwardPass&) override { return absl::OkStatus(); }
  absl::Status BackwardInput(const BackwardPass&) override {
    return absl::OkStatus();
  }
  absl::Status BackwardWeight(const BackwardPass&) override {
    return absl::OkStatus();
  }
};

// Runs a step of bare stages on rank 0.
absl::Status BareStep(const Schedule& schedule,
                      const ExecutorOptions& options) {
  return RunRanks(schedule.map.ranks(), [&](Communicator& c) -> absl::Status {
    std::vector<Bare> stages(2);
    std::vector<StageBinding> bindings;
    for (const int32_t stage :
         schedule.map.StagesOf(static_cast<int32_t>(c.rank().value()))) {
      bindings.push_back({stage, &stages[bindings.size()]});
    }
    TESSERA_ASSIGN_OR_RETURN(const auto executor,
                             Executor::Create(c, schedule, bindings, options));
    return executor->Run().status();
  })[0];
}

TEST(ExecutorErrorsTest, NamesStageWithMissingOverride) {
  const Schedule schedule = *ReadCsv("0F0,1F0,1B0,0B0\n");
  const std::vector<TensorSpec> boundaries = {{DType::kF32, {3}}};
  EXPECT_THAT(BareStep(schedule, {}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("rank 0: the output of stage 0"),
                             HasSubstr("override Stage::OutputSpec"))));
  EXPECT_THAT(BareStep(schedule, {.boundaries = boundaries}), IsOk());
  EXPECT_THAT(BareStep(schedule, {.boundaries = boundaries,
                                  .tied = {{"embedding", {0, 1}}}}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("rank 0: gradients of stage 0"),
                             HasSubstr("\"embedding\""))));
  EXPECT_THAT(
      BareStep(*Generate("dualpipe", {2, 1, 2}), {.boundaries = boundaries}),
      AnyOf(StatusIs(absl::StatusCode::kUnimplemented,
                     HasSubstr("override Stage::Gradients")),
            StatusIs(absl::StatusCode::kAborted,
                     HasSubstr("override Stage::Gradients"))));
}

TEST(ExecutorErrorsTest, NamesStageCopiesWithDifferentShapes) {
  const Schedule schedule = *Generate("dualpipe", {2, 1, 2});
  const auto statuses = RunRanks(2, [&](Communicator& c) -> absl::Status {
    StackShape shape = ShapeFor(schedule);
    shape.rows += c.rank().value();
    TESSERA_ASSIGN_OR_RETURN(const auto rank,
                             MakeStackRank<double>(c, schedule, shape));
    return rank.executor->Run().status();
  });
  EXPECT_THAT(statuses[1],
              Refuses("rank 1: the output of stage 0 of 2 is f64 [3,5], but "
                      "its copy on rank 0 gives f64 [2,5]"));
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kAborted,
                                    HasSubstr("the output of stage 0")));
}

TEST(ExecutorErrorsTest, TooLittleMemoryNamesTheBoundary) {
  const Schedule schedule = *ReadCsv("0F0,1F0,1B0,0B0\n");
  EXPECT_THAT(
      BareStep(schedule, {.boundaries = {{DType::kF64, {int64_t{1} << 50}}},
                          .memory = HostMemory()}),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("(0F0): stage 0, micro-batch 0"),
                     HasSubstr("between stages 0 and 1"))));
}

}  // namespace
}  // namespace tessera::pipeline
