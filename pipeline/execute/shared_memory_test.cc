// Ranks are processes that share memory: a training step with every generator's
// schedule gives the results of a plain loop, and a rank that dies is named.
#include <signal.h>

#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "pipeline/execute/testing/layer_stack.h"

namespace tessera::pipeline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void ExpectAllOk(const std::vector<collectives::RankOutcome>& outcomes) {
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_THAT(outcomes[rank].status, IsOk()) << "rank " << rank;
  }
}

class SharedMemoryTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(SharedMemoryTest, EveryScheduleMatchesGradientsOfOneRank) {
  const int64_t ranks = GetParam();
  ExpectAllOk(collectives::RunSharedMemory(
      ranks, [ranks](collectives::Communicator& c) {
        return ForEachSchedule(
            ranks, 3, [&](const Schedule& schedule) -> absl::Status {
              TESSERA_RETURN_IF_ERROR(CheckStack<double>(c, schedule));
              return CheckStack<float>(c, schedule);
            });
      }));
}

TEST_P(SharedMemoryTest, StartedMessagesMatchGradientsOfOneRank) {
  const int64_t ranks = GetParam();
  ExpectAllOk(collectives::RunSharedMemory(
      ranks, [ranks](collectives::Communicator& c) {
        return ForEachSchedule(ranks, 1, [&](const Schedule& schedule) {
          return CheckStack<double>(c, schedule, {.start_from_bytes = 0});
        });
      }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, SharedMemoryTest,
                         ::testing::Values(1, 2, 3, 4, 8));

// A stage whose process exits in the middle of a step.
class DyingStage : public LayerStage<double> {
 public:
  using LayerStage::LayerStage;
  absl::Status BackwardInput(const BackwardPass& pass) override {
    if (pass.microbatch == 1) raise(SIGKILL);
    return LayerStage::BackwardInput(pass);
  }
};

TEST(SharedMemoryFaultTest, EverySurvivorNamesDeadRank) {
  for (const int64_t start_from : {0, 1 << 20}) {
    const auto outcomes = collectives::RunSharedMemory(
        3, [&](collectives::Communicator& c) -> absl::Status {
          TESSERA_ASSIGN_OR_RETURN(
              const Schedule schedule,
              Generate("1f1b", {.ranks = 3, .chunks = 1, .microbatches = 4}));
          const auto rank = static_cast<int32_t>(c.rank().value());
          LayerStage<double> lives(ShapeFor(schedule), rank);
          DyingStage dies(ShapeFor(schedule), rank);
          Stage* const stage = rank == 1 ? static_cast<Stage*>(&dies) : &lives;
          TESSERA_ASSIGN_OR_RETURN(
              const auto executor,
              Executor::Create(c, schedule, {{rank, stage}},
                               {.start_from_bytes = start_from}));
          return executor->Run().status();
        });
    EXPECT_EQ(outcomes[1].signal, SIGKILL);
    for (const size_t rank : {0, 2}) {
      EXPECT_THAT(outcomes[rank].status,
                  StatusIs(absl::StatusCode::kUnavailable,
                           AllOf(HasSubstr("rank 1"), HasSubstr("is dead"),
                                 HasSubstr("stage"), HasSubstr("micro-batch"))))
          << "rank " << rank;
      EXPECT_LT(outcomes[rank].took, absl::Seconds(10));
    }
  }
}

}  // namespace
}  // namespace tessera::pipeline
