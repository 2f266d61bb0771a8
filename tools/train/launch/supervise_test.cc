#include "tools/train/launch/supervise.h"

#include <optional>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

AttemptOutcome Done() {
  return {.status = absl::OkStatus(), .result = "done", .took_a_step = true};
}
AttemptOutcome Died(int64_t rank, bool took_a_step = true) {
  return {.status = absl::AbortedError(absl::StrCat("rank ", rank, " died")),
          .rank = rank,
          .took_a_step = took_a_step,
          .died = true};
}
AttemptOutcome Failed(absl::Status status, int64_t rank = 0) {
  return {.status = std::move(status), .rank = rank, .took_a_step = true};
}

// A job whose attempts end as instructed.
class FakeJob {
 public:
  explicit FakeJob(std::vector<AttemptOutcome> outcomes)
      : outcomes_(std::move(outcomes)) {}

  AttemptOutcome Run(const Settings& settings, bool are_nodes = false) {
    return Supervise(
        settings,
        {.attempt =
             [&](const Settings& attempt) {
               attempts.push_back(attempt);
               return outcomes_.at(attempts.size() - 1);
             },
         .last_checkpoint = [&] { return checkpoint; },
         .is_valid =
             [&](const Settings& smaller) {
               return smaller.parallel.mesh.ToFlag() != forbidden;
             },
         .notice = [&](const std::string& line) { notices.push_back(line); },
         .are_nodes = are_nodes});
  }

  std::string checkpoint;
  std::string forbidden;
  std::vector<Settings> attempts;
  std::vector<std::string> notices;

 private:
  std::vector<AttemptOutcome> outcomes_;
};

std::vector<std::string> Meshes(const FakeJob& job) {
  std::vector<std::string> meshes;
  for (const Settings& settings : job.attempts) {
    meshes.push_back(settings.parallel.mesh.ToFlag());
  }
  return meshes;
}

TEST(SuperviseTest, ASuccessIsTheEnd) {
  FakeJob job({Done()});
  EXPECT_EQ(job.Run({.max_restarts = 3}).result, "done");
  EXPECT_THAT(job.attempts, SizeIs(1));
  EXPECT_THAT(job.notices, SizeIs(0));
}

TEST(SuperviseTest, HostLeavesIfItsRankFailsTwice) {
  AttemptOutcome own = Died(2), others = Died(2);
  own.may_leave = true;
  FakeJob job({own, others, own, own, Done()});
  const AttemptOutcome last =
      job.Run({.max_restarts = 9, .min_dp = 1}, /*are_nodes=*/true);
  EXPECT_TRUE(last.leaves);
  EXPECT_EQ(last.status.message(), "this host leaves the run: rank 2 died");
  EXPECT_THAT(job.attempts, SizeIs(3));
}

TEST(SuperviseTest, ReplacementsCountAsRestarts) {
  AttemptOutcome replaced = Died(2);
  replaced.replacements = 2;
  FakeJob job({replaced, Died(1), Done()});
  EXPECT_EQ(job.Run({.max_restarts = 3, .snapshot_every = 1}).status.message(),
            "rank 1 died; after 3 restarts");
  ASSERT_THAT(job.attempts, SizeIs(2));
  EXPECT_EQ(job.attempts[0].max_restarts, 3);
  EXPECT_EQ(job.attempts[1].max_restarts, 0);
  // Without further replacements there are no copies.
  EXPECT_EQ(job.attempts[1].snapshot_every, 0);
}

TEST(SuperviseTest, WithoutRestartsADeathIsTheEnd) {
  FakeJob job({Died(3)});
  EXPECT_EQ(job.Run({}).status.message(), "rank 3 died");
}

TEST(SuperviseTest, ResumesFromLastCheckpoint) {
  FakeJob job({Died(3), Done()});
  job.checkpoint = "/run/checkpoints/step-00000020";
  const Settings settings = {.max_restarts = 2};
  TESSERA_EXPECT_OK(job.Run(settings).status);
  ASSERT_THAT(job.attempts, SizeIs(2));
  Settings resumed = settings;
  resumed.resume = job.checkpoint;
  EXPECT_EQ(job.attempts[1], resumed);
  EXPECT_THAT(job.notices,
              ElementsAre("rank 3 died; restart 1 of 2 on dp2,pp2,tp2 from "
                          "/run/checkpoints/step-00000020"));
}

TEST(SuperviseTest, RestartsWithoutCheckpoint) {
  FakeJob job({Died(0), Done()});
  job.Run({.resume = "given", .max_restarts = 1});
  EXPECT_EQ(job.attempts[1].resume, "given");
  FakeJob anew({Died(0), Done()});
  anew.Run({.max_restarts = 1});
  EXPECT_EQ(anew.attempts[1].resume, "");
  EXPECT_THAT(anew.notices[0], HasSubstr("from the beginning"));
}

TEST(SuperviseTest, GivesUpAfterMaxRestarts) {
  FakeJob job({Died(1), Died(2), Died(3)});
  EXPECT_EQ(job.Run({.max_restarts = 2}).status.message(),
            "rank 3 died; after 2 restarts");
  EXPECT_THAT(job.attempts, SizeIs(3));
}

TEST(SuperviseTest, DoesNotRetryPermanentErrors) {
  for (const absl::Status& status :
       {absl::InvalidArgumentError("x"), absl::NotFoundError("x"),
        absl::DataLossError("x"), absl::PermissionDeniedError("x"),
        absl::FailedPreconditionError("x"), absl::UnimplementedError("x"),
        absl::OutOfRangeError("x")}) {
    FakeJob job({Failed(status), Done()});
    EXPECT_EQ(job.Run({.max_restarts = 5}).status, status);
    EXPECT_THAT(job.attempts, SizeIs(1)) << status;
  }
  for (const absl::Status& status :
       {absl::UnavailableError("x"), absl::InternalError("x"),
        absl::ResourceExhaustedError("x"), absl::DeadlineExceededError("x")}) {
    FakeJob job({Failed(status), Done()});
    TESSERA_EXPECT_OK(job.Run({.max_restarts = 5}).status);
  }
}

TEST(SuperviseTest, DoesNotRetryInterruptedJob) {
  FakeJob job({{.status = absl::AbortedError("ended by SIGINT"), .signal = 2}});
  EXPECT_EQ(job.Run({.max_restarts = 5}).signal, 2);
}

TEST(SuperviseTest, StaysOnItsMeshWithoutMinDp) {
  FakeJob job({Died(1), Died(1, false), Done()});
  job.Run({.parallel = {.mesh = {.dp = 4}}, .max_restarts = 2});
  EXPECT_THAT(Meshes(job), ElementsAre("dp4", "dp4", "dp4"));
}

TEST(SuperviseTest, ShrinksAfterTheSecondDeathOfARank) {
  FakeJob job({Died(1), Died(1), Died(2), Done()});
  job.Run({.batch = 12,
           .parallel = {.mesh = {.dp = 4}},
           .max_restarts = 3,
           .min_dp = 1});
  EXPECT_THAT(Meshes(job), ElementsAre("dp4", "dp4", "dp3", "dp3"));
}

TEST(SuperviseTest, ShrinksIfNoStepWasTaken) {
  FakeJob job({Died(7, /*took_a_step=*/false), Done()});
  job.Run({.max_restarts = 1, .min_dp = 1});
  EXPECT_THAT(Meshes(job), ElementsAre("dp2,pp2,tp2", "pp2,tp2"));
}

TEST(SuperviseTest, ShrinksIfResourcesAreExhausted) {
  FakeJob job({Failed(absl::ResourceExhaustedError("no memory")), Done()});
  job.Run({.parallel = {.mesh = {.dp = 8, .tp = 2}},
           .max_restarts = 1,
           .min_dp = 1});
  EXPECT_THAT(Meshes(job), ElementsAre("dp8,tp2", "dp4,tp2"));
}

TEST(SuperviseTest, OneDataRankStaysOne) {
  FakeJob job({Died(0, false), Died(0, false), Done()});
  job.Run({.parallel = {.mesh = {.tp = 4}}, .max_restarts = 2, .min_dp = 1});
  EXPECT_THAT(Meshes(job), ElementsAre("tp4", "tp4", "tp4"));
}

// A replacement that fails, within one attempt.
TEST(SuperviseTest, ShrinksIfAttemptNeedsFewerRanks) {
  AttemptOutcome twice = Died(1);
  twice.needs_fewer_ranks = true;
  FakeJob job({twice, Done()});
  job.Run({.max_restarts = 1, .min_dp = 1});
  EXPECT_THAT(Meshes(job), ElementsAre("dp2,pp2,tp2", "pp2,tp2"));
}

TEST(SuperviseTest, DoesNotShrinkBelowMinDp) {
  FakeJob job({Died(0, false), Died(0, false), Died(0, false), Done()});
  job.Run({.batch = 24,
           .parallel = {.mesh = {.dp = 6}},
           .max_restarts = 3,
           .min_dp = 3});
  EXPECT_THAT(Meshes(job), ElementsAre("dp6", "dp4", "dp3", "dp3"));
}

TEST(SuperviseTest, GrowthIsNoRestart) {
  AttemptOutcome grows = Done();
  grows.grows = true;
  FakeJob job({grows, Died(1), grows, Done()});
  job.checkpoint = "/run/checkpoints/step-00000020";
  EXPECT_EQ(job.Run({.max_restarts = 1}).result, "done");
  EXPECT_THAT(job.attempts, SizeIs(4));
  EXPECT_THAT(job.attempts[1].resume, job.checkpoint);
  EXPECT_THAT(job.notices, SizeIs(1));
}

std::string FitOf(
    Settings settings, int64_t most,
    const std::function<bool(const Settings&)>& is_valid = [](const Settings&) {
      return true;
    }) {
  settings.min_dp = 1;
  const auto fit = FitDataAxis(settings, most, is_valid);
  return fit.has_value() ? fit->parallel.mesh.ToFlag() : "none";
}

TEST(FitDataAxisTest, ChoosesLargestValidDivisorOfBatch) {
  const Settings settings = {.batch = 16,
                             .parallel = {.mesh = {.dp = 8, .pp = 2}}};
  EXPECT_EQ(FitOf(settings, 16), "dp16,pp2");
  EXPECT_EQ(FitOf(settings, 15), "dp8,pp2");
  EXPECT_EQ(FitOf(settings, 7), "dp4,pp2");
  const auto not_four = [](const Settings& s) {
    return s.parallel.mesh.dp != 4;
  };
  EXPECT_EQ(FitOf(settings, 7, not_four), "dp2,pp2");
  EXPECT_EQ(FitOf(settings, 7, [](const Settings&) { return false; }), "none");
  EXPECT_EQ(FitOf({.parallel = {.mesh = {.tp = 2}}}, 0), "none");
}

// A single rank has no other one for its copy.
TEST(FitDataAxisTest, SingleRankHasNoCopies) {
  const Settings settings = {.batch = 4,
                             .parallel = {.mesh = {.dp = 4}},
                             .snapshot_every = 1,
                             .min_dp = 1};
  const auto valid = [](const Settings&) { return true; };
  EXPECT_EQ(FitDataAxis(settings, 2, valid)->snapshot_every, 1);
  EXPECT_EQ(FitDataAxis(settings, 1, valid)->snapshot_every, 0);
}

// Drops replicas; each remaining one keeps all of its shards.
TEST(FitDataAxisTest, KeepsTheShardsOfReplicas) {
  const auto fit = [](int64_t batch, const topology::MeshSizes& mesh,
                      int64_t most) {
    return FitOf({.batch = batch, .parallel = {.mesh = mesh}}, most);
  };
  EXPECT_EQ(fit(16, {.dp = 8, .dp_replicate = 4}, 7),
            "dp_replicate2,dp_shard2");
  EXPECT_EQ(fit(12, {.dp = 8, .dp_replicate = 4}, 7),
            "dp_replicate3,dp_shard2");
  EXPECT_EQ(fit(4, {.dp = 4, .dp_replicate = 4}, 3), "dp_replicate2");
  // With the last replica only.
  EXPECT_EQ(fit(6, {.dp = 6, .tp = 2, .dp_replicate = 2}, 5), "dp3,tp2");
  EXPECT_EQ(fit(5, {.dp = 4, .dp_replicate = 2}, 3), "none");
}

std::string CrewOf(const Settings& settings, int64_t at_start, int64_t nodes) {
  const auto crew = FitCrew(settings, at_start, nodes);
  return crew.has_value() ? absl::StrCat(crew->settings.parallel.mesh.ToFlag(),
                                         " on ", crew->nodes)
                          : "none";
}

TEST(FitCrewTest, LimitsRanksPerNode) {
  Settings settings = {.batch = 24,
                       .parallel = {.mesh = {.dp = 6}},
                       .max_restarts = 1,
                       .min_dp = 2,
                       .max_dp = 8};
  EXPECT_EQ(CrewOf(settings, 3, 1), "dp2 on 1");
  EXPECT_EQ(CrewOf(settings, 3, 2), "dp4 on 2");
  EXPECT_EQ(CrewOf(settings, 3, 3), "dp6 on 3");
  EXPECT_EQ(CrewOf(settings, 3, 4), "dp8 on 4");
  EXPECT_EQ(CrewOf(settings, 3, 9), "dp8 on 4");
  settings.min_dp = 3;
  // Three ranks on two nodes are an unequal number.
  EXPECT_EQ(CrewOf(settings, 3, 1), "none");
  EXPECT_EQ(CrewOf(settings, 2, 1), "dp3 on 1");
}

TEST(FitCrewTest, KeepsMeshWithoutMinDp) {
  const Settings settings = {.batch = 8, .parallel = {.mesh = {.dp = 4}}};
  EXPECT_EQ(CrewOf(settings, 2, 1), "none");
  EXPECT_EQ(CrewOf(settings, 2, 2), "dp4 on 2");
  EXPECT_EQ(CrewOf(settings, 2, 5), "dp4 on 2");
}

}  // namespace
}  // namespace tessera::train
