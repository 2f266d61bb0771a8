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

  AttemptOutcome Run(const Settings& settings) {
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
         .notice = [&](const std::string& line) { notices.push_back(line); }});
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

TEST(SuperviseTest, ReplacementsCountAsRestarts) {
  AttemptOutcome replaced = Died(2);
  replaced.replacements = 2;
  FakeJob job({replaced, Died(1), Done()});
  EXPECT_EQ(job.Run({.max_restarts = 3, .snapshot_every = 1}).status.message(),
            "rank 1 died; after 3 restarts");
  ASSERT_THAT(job.attempts, SizeIs(2));
  EXPECT_EQ(job.attempts[0].max_restarts, 3);
  EXPECT_EQ(job.attempts[1].max_restarts, 0);
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

TEST(SuperviseTest, StaysOnItsMeshUnlessElastic) {
  FakeJob job({Died(1), Died(1, false), Done()});
  job.Run({.parallel = {.mesh = {.dp = 4}}, .max_restarts = 2});
  EXPECT_THAT(Meshes(job), ElementsAre("dp4", "dp4", "dp4"));
}

TEST(SuperviseTest, ElasticShrinksAfterTheSecondDeathOfARank) {
  FakeJob job({Died(1), Died(1), Died(2), Done()});
  job.Run({.batch = 12,
           .parallel = {.mesh = {.dp = 4}},
           .max_restarts = 3,
           .elastic = true});
  EXPECT_THAT(Meshes(job), ElementsAre("dp4", "dp4", "dp3", "dp3"));
}

TEST(SuperviseTest, ElasticShrinksIfNoStepWasTaken) {
  FakeJob job({Died(7, /*took_a_step=*/false), Done()});
  job.Run({.max_restarts = 1, .elastic = true});
  EXPECT_THAT(Meshes(job), ElementsAre("dp2,pp2,tp2", "pp2,tp2"));
}

TEST(SuperviseTest, ElasticShrinksIfResourcesAreExhausted) {
  FakeJob job({Failed(absl::ResourceExhaustedError("no memory")), Done()});
  job.Run({.parallel = {.mesh = {.dp = 8, .tp = 2}},
           .max_restarts = 1,
           .elastic = true});
  EXPECT_THAT(Meshes(job), ElementsAre("dp8,tp2", "dp4,tp2"));
}

TEST(SuperviseTest, OneDataRankStaysOne) {
  FakeJob job({Died(0, false), Died(0, false), Done()});
  job.Run(
      {.parallel = {.mesh = {.tp = 4}}, .max_restarts = 2, .elastic = true});
  EXPECT_THAT(Meshes(job), ElementsAre("tp4", "tp4", "tp4"));
}

TEST(ShrinkDataAxisTest, ChoosesLargestValidDivisorOfBatch) {
  const auto valid = [](const Settings&) { return true; };
  const auto mesh_of = [](const std::optional<Settings>& settings) {
    return settings.has_value() ? settings->parallel.mesh.ToFlag() : "none";
  };
  const Settings settings = {.batch = 16,
                             .parallel = {.mesh = {.dp = 8, .pp = 2}}};
  EXPECT_EQ(mesh_of(ShrinkDataAxis(settings, valid)), "dp4,pp2");
  const auto not_four = [](const Settings& s) {
    return s.parallel.mesh.dp != 4;
  };
  EXPECT_EQ(mesh_of(ShrinkDataAxis(settings, not_four)), "dp2,pp2");
  const auto none = [](const Settings&) { return false; };
  EXPECT_EQ(mesh_of(ShrinkDataAxis(settings, none)), "none");
  EXPECT_EQ(mesh_of(ShrinkDataAxis({.parallel = {.mesh = {.tp = 2}}}, valid)),
            "none");
}

// Drops replicas; each remaining one keeps all of its shards.
TEST(ShrinkDataAxisTest, KeepsTheShardsOfReplicas) {
  const auto shrunk = [](int64_t batch, const topology::MeshSizes& mesh) {
    const auto settings =
        ShrinkDataAxis({.batch = batch, .parallel = {.mesh = mesh}},
                       [](const Settings&) { return true; });
    return settings.has_value() ? settings->parallel.mesh.ToFlag() : "none";
  };
  EXPECT_EQ(shrunk(16, {.dp = 8, .dp_replicate = 4}),
            "dp_replicate2,dp_shard2");
  EXPECT_EQ(shrunk(12, {.dp = 8, .dp_replicate = 4}),
            "dp_replicate3,dp_shard2");
  EXPECT_EQ(shrunk(4, {.dp = 4, .dp_replicate = 4}), "dp_replicate2");
  // With the last replica only.
  EXPECT_EQ(shrunk(6, {.dp = 6, .tp = 2, .dp_replicate = 2}), "dp3,tp2");
  EXPECT_EQ(shrunk(5, {.dp = 4, .dp_replicate = 2}), "none");
}

}  // namespace
}  // namespace tessera::train
