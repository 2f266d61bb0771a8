#include "tools/train/loop/worker.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/train/predict/message_table.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/testing/run_job.h"

namespace tessera::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

std::string NewDirectory(std::string_view name) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  std::filesystem::remove_all(path);
  std::filesystem::create_directory(path);
  return path;
}

void ExpectSharesAddUp(const RunResult& result) {
  for (const StepMetrics& step : result.steps) {
    EXPECT_NEAR(step.shares.Sum(), 1, 1e-9);
  }
  for (const RankResult& rank : result.ranks) {
    EXPECT_NEAR(rank.shares.Sum(), 1, 1e-9);
    for (const double share :
         {rank.shares.compute, rank.shares.communication, rank.shares.bubble,
          rank.shares.offload, rank.shares.products, rank.shares.optimizer}) {
      EXPECT_GE(share, 0);
      EXPECT_LE(share, 1 + 1e-9);
    }
    EXPECT_LE(rank.shares.products + rank.shares.optimizer,
              rank.shares.compute + 1e-9);
  }
}

TEST(WorkerTest, MatchesLossesOfTrainRankOnAnyMesh) {
  for (const auto& [mesh, zero] : std::vector<std::pair<std::string, int>>{
           {"dp1", 0}, {"dp2,pp2", 3}, {"pp2,tp2", 1}, {"dp2,cp2", 2}}) {
    Settings settings = SmallSettings();
    settings.parallel.mesh = *topology::MeshSizes::Parse(mesh);
    settings.zero = zero;
    SCOPED_TRACE(mesh);
    const JobRun run = RunJob(settings);
    ASSERT_THAT(run.statuses, Each(IsOk()));
    EXPECT_EQ(run.losses(), LossesOfTrainRank(settings));
    EXPECT_LT(run.losses().back(), run.losses().front());
    ExpectSharesAddUp(run.result);
  }
}

TEST(WorkerTest, OffloadingChangesNoBit) {
  for (const char* mesh : {"dp1", "dp2"}) {
    Settings settings = SmallSettings();
    settings.parallel.mesh = *topology::MeshSizes::Parse(mesh);
    settings.zero = 3;
    const std::vector<double> expected = RunJob(settings).losses();
    ASSERT_EQ(expected.size(), 4u);
    for (const char* offload :
         {"optimizer", "params", "all", "all,activations"}) {
      for (const bool in_files : {false, true}) {
        for (const char* compression : {"none", "lossless"}) {
          settings.offload = offload;
          settings.compression = compression;
          const std::string around = NewDirectory("offloaded");
          settings.offload_dir = in_files ? around + "/made/here" : "";
          SCOPED_TRACE(absl::StrCat(mesh, " ", offload, " ", in_files, " ",
                                    compression));
          const JobRun run = RunJob(settings);
          ASSERT_THAT(run.statuses, Each(IsOk()));
          EXPECT_EQ(run.losses(), expected);
          EXPECT_TRUE(std::filesystem::is_empty(around));
        }
      }
    }
  }
}

// Compression rounds the gradients of fp32 parameters, and both gradients and
// parameters of bf16 ones. It never rounds the optimizer's state, because some
// update would be divided by epsilon alone.
TEST(WorkerTest, LossyCompressionStaysNearTheExactLosses) {
  for (const char* dtype : {"fp32", "bf16"}) {
    Settings settings = SmallSettings();
    settings.parallel.mesh = {.dp = 2};
    settings.parallel.dtype = *topology::ParseEnum<DType>(dtype);
    settings.zero = 3;
    settings.offload = "all";
    const std::vector<double> exact = RunJob(settings).losses();
    ASSERT_EQ(exact.size(), 4u);
    for (const char* compression : {"bf16", "int8"}) {
      settings.compression = compression;
      SCOPED_TRACE(absl::StrCat(dtype, " ", compression));
      const JobRun run = RunJob(settings);
      ASSERT_THAT(run.statuses, Each(IsOk()));
      const std::vector<double> losses = run.losses();
      ASSERT_EQ(losses.size(), exact.size());
      for (size_t step = 0; step < exact.size(); ++step) {
        EXPECT_NEAR(losses[step], exact[step], 0.05 * exact[step]);
      }
      EXPECT_NE(losses, exact);
    }
  }
}

TEST(WorkerTest, SmallerMomentsStayNearTheExactLosses) {
  Settings settings = SmallSettings();
  settings.parallel.mesh = {.dp = 2};
  settings.zero = 3;
  const std::vector<double> exact = RunJob(settings).losses();
  for (const char* moments : {"bf16", "int8"}) {
    settings.moments = moments;
    SCOPED_TRACE(moments);
    std::vector<double> in_memory;
    for (const char* offload : {"none", "optimizer"}) {
      settings.offload = offload;
      const JobRun run = RunJob(settings);
      ASSERT_THAT(run.statuses, Each(IsOk()));
      const std::vector<double> losses = run.losses();
      ASSERT_EQ(losses.size(), exact.size());
      for (size_t step = 0; step < exact.size(); ++step) {
        EXPECT_NEAR(losses[step], exact[step], 0.02 * exact[step]);
      }
      EXPECT_NE(losses, exact);
      if (in_memory.empty()) in_memory = losses;
      EXPECT_EQ(losses, in_memory);
    }
  }
}

TEST(WorkerTest, ReportsBytesByRankAndTier) {
  Settings settings = SmallSettings();
  settings.parallel.mesh = {.dp = 2};
  settings.zero = 3;
  const int64_t bytes = SmallModel().ParameterBytes(DType::kF32);
  const auto of = [](const BytesByPurpose& purposes, offload::Purpose purpose) {
    return purposes[static_cast<size_t>(purpose)];
  };
  const RunResult plain = RunJob(settings).result;
  ASSERT_EQ(plain.ranks.size(), 2u);
  EXPECT_TRUE(plain.memory_is_shared);
  for (const RankResult& rank : plain.ranks) {
    const RankMemory& memory = rank.memory;
    EXPECT_GT(memory.resident, memory.resident_before / 2);
    EXPECT_GE(memory.peak_resident, memory.resident);
    EXPECT_NEAR(of(memory.device, offload::Purpose::kParameters), bytes / 2,
                bytes / 20);
    EXPECT_NEAR(of(memory.device, offload::Purpose::kOptimizer), bytes,
                bytes / 20);
    EXPECT_GT(of(memory.device, offload::Purpose::kGradients), bytes / 2 - 8);
    EXPECT_GT(of(memory.device, offload::Purpose::kActivations), 0);
    EXPECT_EQ(of(memory.host, offload::Purpose::kOptimizer), 0);
  }
  settings.offload = "optimizer";
  const RunResult on_host = RunJob(settings).result;
  settings.offload_dir = NewDirectory("held");
  const RunResult in_files = RunJob(settings).result;
  for (size_t rank = 0; rank < 2; ++rank) {
    const RankMemory& host = on_host.ranks[rank].memory;
    EXPECT_EQ(of(host.device, offload::Purpose::kOptimizer), 0);
    EXPECT_NEAR(of(host.host, offload::Purpose::kOptimizer), bytes, bytes / 20);
    const RankMemory& file = in_files.ranks[rank].memory;
    EXPECT_NEAR(of(file.file, offload::Purpose::kOptimizer), bytes, bytes / 20);
    EXPECT_EQ(of(file.host, offload::Purpose::kOptimizer), 0);
  }
}

TEST(WorkerTest, OneRankNeitherCommunicatesNorWaits) {
  const JobRun run = RunJob(SmallSettings());
  ASSERT_THAT(run.statuses, Each(IsOk()));
  EXPECT_FALSE(run.result.memory_is_shared);
  const TimeShares& shares = run.result.ranks[0].shares;
  EXPECT_EQ(shares.communication, 0);
  EXPECT_EQ(shares.bubble, 0);
  EXPECT_EQ(shares.offload, 0);
  EXPECT_GT(shares.products, 0.05);
  EXPECT_GT(shares.optimizer, 0);
}

TEST(WorkerTest, EveryAxisHasItsTraffic) {
  for (const char* mesh : {"dp2", "pp2", "cp2", "tp2"}) {
    Settings settings = SmallSettings();
    settings.parallel.mesh = *topology::MeshSizes::Parse(mesh);
    const JobRun run = RunJob(settings);
    ASSERT_THAT(run.statuses, Each(IsOk()));
    SCOPED_TRACE(mesh);
    for (const RankResult& rank : run.result.ranks) {
      EXPECT_GT(rank.shares.communication, 0);
      EXPECT_EQ(rank.shares.bubble > 0, mesh == std::string("pp2"));
    }
  }
}

// Also below stage 3, where gathers of new weights outlast their step, and with
// validations, which are not counted.
TEST(WorkerTest, MeasuredMessagesArePredicted) {
  for (const int zero : {1, 3}) {
    for (const char* mesh : {"dp2,tp2", "dp2,pp2"}) {
      Settings settings = SmallSettings();
      settings.parallel.mesh = *topology::MeshSizes::Parse(mesh);
      settings.zero = zero;
      settings.eval_every = 2;
      settings.validation_fraction = 0.2;
      SCOPED_TRACE(absl::StrCat(mesh, " zero ", zero));
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const RunPrediction prediction,
          MakePrediction(settings, SmallModel(), {.room = MachineRoom()}));
      const JobRun run = RunJob(settings);
      ASSERT_THAT(run.statuses, Each(IsOk()));
      for (size_t r = 0; r < 4; ++r) {
        const MeasuredMessages& measured = run.result.ranks[r].messages;
        EXPECT_EQ(measured.steps, 3);  // Without the first.
        EXPECT_TRUE(measured.is_timed);
        for (const MessageComparison& one :
             CompareMessages(prediction.ranks[r].traffic, measured)) {
          SCOPED_TRACE(absl::StrCat("rank ", r, " ", one.predicted.axis, " ",
                                    one.predicted.operation));
          EXPECT_EQ(one.measured.count, 3 * one.predicted.totals.count);
          EXPECT_EQ(one.measured.bytes, 3 * one.predicted.totals.bytes);
          EXPECT_GT(one.measured.MeanNanos(), 0);
        }
      }
    }
  }
}

TEST(WorkerTest, TimesAndRatesFitEachOther) {
  const Settings settings = SmallSettings();
  const RunResult result = RunJob(settings).result;
  ASSERT_EQ(result.steps.size(), 4u);
  double seconds = 0;
  for (const StepMetrics& step : result.steps) {
    seconds += step.seconds;
    EXPECT_NEAR(step.tokens_per_second * step.seconds, 8 * 16, 1e-6);
    EXPECT_GT(step.memory_bytes, 1 << 20);
  }
  EXPECT_NEAR(result.seconds, seconds, 1e-12);
  EXPECT_NEAR(
      result.tokens_per_second * (result.seconds - result.steps[0].seconds),
      3 * 8 * 16, 1e-6);
}

TEST(WorkerTest, RankZeroPrintsTableUnlessQuiet) {
  Settings settings = SmallSettings();
  settings.parallel.mesh = {.dp = 2};
  const JobRun run = RunJob(settings);
  const std::vector<std::string> rows = absl::StrSplit(run.table, '\n');
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_THAT(rows[4], HasSubstr("4/4"));
  settings.quiet = true;
  EXPECT_EQ(RunJob(settings).table, "");
}

TEST(WorkerTest, FailedRankEndsAllRanks) {
  for (const char* mesh : {"dp4", "pp4", "dp2,tp2", "pp2,cp2"}) {
    for (const int64_t failing : {0, 3}) {
      Settings settings = SmallSettings();
      settings.parallel.mesh = *topology::MeshSizes::Parse(mesh);
      settings.zero = absl::StrContains(mesh, "dp") ? 3 : 0;
      settings.offload = "optimizer";
      const std::string around = NewDirectory("failing");
      settings.offload_dir = around + "/made";
      SCOPED_TRACE(absl::StrCat(mesh, ", rank ", failing));
      const JobRun run = RunJob(settings, [&](int64_t rank, WorkerSinks& own) {
        own.before_step = [rank, failing](int64_t step) {
          return rank == failing && step == 2
                     ? absl::DataLossError("the disk is gone")
                     : absl::OkStatus();
        };
      });
      for (const absl::Status& status : run.statuses) {
        EXPECT_FALSE(status.ok());
        EXPECT_THAT(std::string(status.message()),
                    AllOf(HasSubstr(absl::StrCat("rank ", failing)),
                          HasSubstr("the disk is gone")));
      }
      EXPECT_LT(run.took, absl::Seconds(30));
      EXPECT_TRUE(std::filesystem::is_empty(around));
    }
  }
}

TEST(WorkerTest, NamesStepOfNonFiniteLoss) {
  Settings settings = SmallSettings();
  settings.parallel.mesh = {.dp = 2};
  settings.clip_norm = 0;
  settings.learning_rate = 1e30;
  settings.min_learning_rate = 1e30;
  const JobRun run = RunJob(settings);
  EXPECT_THAT(run.statuses,
              Each(StatusIs(absl::StatusCode::kOutOfRange,
                            AllOf(HasSubstr("step 1"), HasSubstr("finite"),
                                  HasSubstr("--learning_rate")))));
}

// The first step makes weights infinite, so that every later loss is NaN.
TEST(WorkerTest, SkipsNonFiniteStepsUpToLimit) {
  Settings settings = SmallSettings();
  settings.parallel.mesh = {.dp = 2};
  settings.clip_norm = 0;
  settings.learning_rate = 1e39;
  settings.min_learning_rate = 1e39;
  settings.max_skipped_steps = 2;
  settings.steps = 5;
  JobRun run = RunJob(settings);
  EXPECT_THAT(
      run.statuses,
      Each(StatusIs(absl::StatusCode::kOutOfRange,
                    AllOf(HasSubstr("step 3 (from 0)"),
                          HasSubstr("rank 0: a loss of nan in its samples, "),
                          HasSubstr("rank 1: a loss of nan"),
                          HasSubstr(" gradient elements; 3 such steps in a "
                                    "row, and --max_skipped_steps=2)")))));
  EXPECT_THAT(run.table,
              AllOf(HasSubstr("train: step 1 (from 0) is skipped, since "
                              "numbers are not finite: rank 0: a loss of nan"),
                    HasSubstr("step 2 (from 0) is skipped")));

  settings.max_skipped_steps = 4;
  run = RunJob(settings);
  ASSERT_THAT(run.statuses, Each(IsOk()));
  ASSERT_EQ(run.result.steps.size(), 5u);
  for (size_t step = 0; step < 5; ++step) {
    EXPECT_EQ(run.result.steps[step].record.skipped, step > 0);
    EXPECT_EQ(std::isnan(run.result.steps[step].record.loss), step > 0);
  }
}

TEST(WorkerTest, RejectsInvalidSettings) {
  Settings settings = SmallSettings();
  settings.zero = 1;
  settings.offload = "params";
  EXPECT_THAT(RunJob(settings).statuses,
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("--offload"))));
  settings = SmallSettings();
  settings.offload = "optimizer";
  settings.offload_dir = "/proc/self/status/no";
  EXPECT_THAT(RunJob(settings).statuses[0].message(),
              HasSubstr("--offload_dir=/proc/self/status/no"));
  settings = SmallSettings();
  settings.metrics = "/proc/self/none/metrics.jsonl";
  EXPECT_THAT(RunJob(settings).statuses[0].message(), HasSubstr("--metrics="));
  settings = SmallSettings();
  settings.resume = ::testing::TempDir() + "/nothing";
  EXPECT_THAT(RunJob(settings).statuses[0].message(), HasSubstr("--resume="));
}

}  // namespace
}  // namespace tessera::train
