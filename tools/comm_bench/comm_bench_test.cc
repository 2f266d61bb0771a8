// Runs the benchmark as real jobs: tests its measurements, the faults it
// detects, and that no process is left behind. This binary is its own worker.

#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/engine/engine_registry.h"
#include "collectives/shared_memory/shared_memory.h"
#include "gtest/gtest.h"
#include "tools/comm_bench/bench_run.h"
#include "tools/comm_bench/job.h"
#include "tools/launch/rank_processes.h"
#include "tools/launch/signals.h"

namespace tessera::tools {
namespace {

using collectives::Engine;
using collectives::OperationContext;
using collectives::OpKind;
using collectives::PeerReport;
using collectives::SharedMemory;
using collectives::Transport;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using topology::Rank;

enum class Fault { kWrongElement, kDies, kFails };

// An engine with a fault in rank 1's all-reduces.
class FaultyEngine : public Engine {
 public:
  FaultyEngine(std::unique_ptr<Engine> engine, Fault fault)
      : engine_(std::move(engine)), fault_(fault) {}

  std::string_view name() const override { return "faulty"; }
  Rank rank() const override { return engine_->rank(); }
  int64_t size() const override { return engine_->size(); }
  bool Implements(OpKind kind) const override {
    return engine_->Implements(kind);
  }
  absl::Status Run(const collectives::Operation& operation,
                   OperationContext& context) override {
    const bool strikes =
        operation.kind == OpKind::kAllReduce && rank() == Rank(1);
    if (strikes && fault_ == Fault::kDies) raise(SIGKILL);
    if (strikes && fault_ == Fault::kFails) {
      return absl::UnavailableError("the cable is out");
    }
    TESSERA_RETURN_IF_ERROR(engine_->Run(operation, context));
    if (strikes && operation.output.count > 5) {
      operation.output.Bytes()[5 * SizeInBytes(operation.output.dtype)] ^=
          std::byte{64};
    }
    return absl::OkStatus();
  }
  Transport* transport() override { return engine_->transport(); }
  absl::StatusOr<std::unique_ptr<Engine>> CreateSubgroup(
      std::span<const Rank> members, uint32_t group,
      int64_t deadline) override {
    return engine_->CreateSubgroup(members, group, deadline);
  }
  absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateShared(
      int64_t bytes) override {
    return engine_->AllocateShared(bytes);
  }
  void Abort(const absl::Status& reason) override { engine_->Abort(reason); }
  std::vector<PeerReport> Peers() const override { return engine_->Peers(); }

 private:
  std::unique_ptr<Engine> engine_;
  Fault fault_;
};

bool RegisterFaulty(std::string_view name, Fault fault) {
  return collectives::RegisterEngine(
      name,
      [fault](const collectives::EngineSetup& setup)
          -> absl::StatusOr<std::unique_ptr<Engine>> {
        TESSERA_ASSIGN_OR_RETURN(
            std::unique_ptr<Engine> engine,
            collectives::CreateSharedMemoryEngine(*setup.store));
        return std::make_unique<FaultyEngine>(std::move(engine), fault);
      });
}

[[maybe_unused]] const bool registered[] = {
    RegisterFaulty("wrong", Fault::kWrongElement),
    RegisterFaulty("dying", Fault::kDies),
    RegisterFaulty("failing", Fault::kFails),
    collectives::RegisterEngine("unmakeable",
                                [](const collectives::EngineSetup& setup)
                                    -> absl::StatusOr<std::unique_ptr<Engine>> {
                                  // Waits until the other rank has reported its
                                  // error.
                                  if (setup.rank == Rank(0)) sleep(1);
                                  return absl::NotFoundError(
                                      "there is no such card");
                                })};

BenchOptions Small(std::vector<std::string> engines) {
  BenchOptions options;
  options.sizes = {8, 4096};
  options.engines = std::move(engines);
  options.worlds = {2};
  options.ops = {OpKind::kAllReduce};
  options.algorithms = {"engine"};
  options.dtypes = {DType::kF32};
  options.iterations = 5;
  options.warmup = 1;
  return options;
}

struct Outcome {
  absl::Status status;
  std::vector<Row> rows;
};

Outcome Measure(const BenchOptions& options,
                const SignalWatch* signals = nullptr) {
  Outcome run;
  BenchEvents events;
  events.on_progress = [](const std::string&) {};
  events.on_case = [&](const std::vector<Row>& rows) {
    run.rows.insert(run.rows.end(), rows.begin(), rows.end());
  };
  run.status = RunBenchmark(options, signals, events);
  // No process may be left, whatever happened.
  EXPECT_THAT(ListChildren(), IsOkAndHolds(IsEmpty()));
  return run;
}

TEST(CommBenchTest, ComparesEnginesCaseByCase) {
  const Outcome run = Measure(Small({"shared_memory", "in_process"}));
  TESSERA_ASSERT_OK(run.status);
  ASSERT_EQ(run.rows.size(), 4u);
  for (const Row& row : run.rows) {
    EXPECT_GT(row.seconds, 0);
    EXPECT_EQ(row.iterations, 5);
    EXPECT_GT(row.bound_seconds.value(), 0);
    EXPECT_EQ(row.algorithm, "engine");
  }
  EXPECT_EQ(run.rows[0].engine, "shared_memory");
  EXPECT_EQ(run.rows[0].bytes, 8);
  EXPECT_EQ(run.rows[0].ratio, 1);
  EXPECT_EQ(run.rows[1].engine, "in_process");
  EXPECT_DOUBLE_EQ(run.rows[1].ratio,
                   run.rows[1].seconds / run.rows[0].seconds);
  EXPECT_EQ(run.rows[2].bytes, 4096);
}

TEST(CommBenchTest, EveryAlgorithmOfEveryCollectiveIsCorrect) {
  for (const std::string engine : {"shared_memory", "in_process"}) {
    for (const int64_t world : {1, 3}) {
      BenchOptions options = Small({engine});
      options.worlds = {world};
      options.ops.assign(collectives::kCollectiveKinds.begin(),
                         collectives::kCollectiveKinds.end());
      options.algorithms = {"all"};
      options.iterations = 2;
      options.bound = false;
      for (const bool in_place : {false, true}) {
        options.in_place = in_place;
        options.registered = in_place;
        const Outcome run = Measure(options);
        EXPECT_THAT(run.status, IsOk()) << engine << " " << world;
        EXPECT_GT(run.rows.size(), 60u);
      }
    }
  }
}

TEST(CommBenchTest, EveryReductionAndTypeIsCorrect) {
  for (const collectives::ReduceOp op : collectives::kAllReduceOps) {
    BenchOptions options = Small({"in_process"});
    options.worlds = {3};
    options.iterations = 1;
    options.bound = false;
    options.reduction = op;
    options.dtypes = {DType::kF64, DType::kBF16, DType::kF16,
                      DType::kI64, DType::kI8,   DType::kU8};
    if (collectives::IsBitwise(op)) {
      options.dtypes = {DType::kI64, DType::kI8, DType::kU8};
    }
    EXPECT_THAT(Measure(options).status, IsOk()) << op;
  }
}

TEST(CommBenchTest, ReproducibleModeHasSeparateRows) {
  BenchOptions options = Small({"shared_memory"});
  options.reproducible = true;
  options.algorithms = {"engine", "ring"};
  const Outcome run = Measure(options);
  TESSERA_ASSERT_OK(run.status);
  ASSERT_EQ(run.rows.size(), 8u);
  EXPECT_EQ(run.rows[2].algorithm, "engine+reproducible");
  EXPECT_EQ(run.rows[3].algorithm, "ring+reproducible");
}

TEST(CommBenchTest, MeasuresOverlapOnRequest) {
  BenchOptions options = Small({"in_process"});
  options.overlap = true;
  const Outcome run = Measure(options);
  TESSERA_ASSERT_OK(run.status);
  for (const Row& row : run.rows) {
    ASSERT_TRUE(row.overlap.has_value());
    EXPECT_GT(row.overlap->compute_seconds, 0);
    EXPECT_GT(row.overlap->both_seconds, 0);
    EXPECT_TRUE(std::isfinite(row.overlap->Hidden()));
  }
}

TEST(CommBenchTest, RegretComparesTheChoiceWithAllAlgorithms) {
  setenv("XDG_CACHE_HOME", ::testing::TempDir().c_str(), 1);
  BenchOptions options = Small({"in_process"});
  options.regret = true;
  options.algorithms = {"all"};
  const Outcome run = Measure(options);
  TESSERA_ASSERT_OK(run.status);
  int choices = 0;
  for (const Row& row : run.rows) {
    if (!row.choice.has_value()) continue;
    EXPECT_GE(row.choice->regret, 1);
    ++choices;
  }
  EXPECT_EQ(choices, 2);
}

TEST(CommBenchTest, WrongResultEndsTheRunWithRankAndElement) {
  const Outcome run = Measure(Small({"in_process", "wrong"}));
  EXPECT_THAT(run.status, StatusIs(absl::StatusCode::kInternal,
                                   AllOf(HasSubstr("engine wrong with 2 ranks"),
                                         HasSubstr("rank 1: wrong result"),
                                         HasSubstr("element 5 is "))));
  EXPECT_EQ(run.rows.size(), 2u);  // 8 bytes have no element 5.
}

TEST(CommBenchTest, WithoutChecksWrongResultsAreNotDetected) {
  BenchOptions options = Small({"wrong"});
  options.check = false;
  EXPECT_THAT(Measure(options).status, IsOk());
}

TEST(CommBenchTest, ReportsADeadWorkerAndEndsTheOthers) {
  const Outcome run = Measure(Small({"shared_memory", "dying"}));
  EXPECT_THAT(run.status, StatusIs(absl::StatusCode::kUnknown,
                                   AllOf(HasSubstr("engine dying"),
                                         HasSubstr("rank 1: its process "),
                                         HasSubstr("killed by SIGKILL"))));
}

TEST(CommBenchTest, ReportsTheErrorOfAnEngine) {
  EXPECT_THAT(Measure(Small({"failing"})).status,
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("engine failing with 2 ranks"),
                             HasSubstr("the cable is out"))));
}

TEST(CommBenchTest, ReportsWhyAnEngineCannotBeCreated) {
  EXPECT_THAT(Measure(Small({"unmakeable"})).status,
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("engine unmakeable with 2 ranks"),
                             HasSubstr("rank 1: there is no such card"))));
}

TEST(CommBenchTest, RejectsAnUnknownEngine) {
  EXPECT_THAT(Measure(Small({"in_process", "tin_cans"})).status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--engine=tin_cans"),
                             HasSubstr("the engines are: "),
                             HasSubstr("shared_memory"))));
}

TEST(CommBenchTest, SignalEndsTheRunAndItsProcesses) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto signals, SignalWatch::Create());
  BenchOptions options = Small({"shared_memory"});
  options.iterations = 100'000;
  options.sizes = {1 << 20};
  options.bound = false;
  std::thread sender([] {
    usleep(700'000);
    kill(getpid(), SIGTERM);
  });
  const Outcome run = Measure(options, signals.get());
  sender.join();
  EXPECT_THAT(run.status, StatusIs(absl::StatusCode::kCancelled,
                                   HasSubstr("interrupted by SIGTERM")));
}

}  // namespace
}  // namespace tessera::tools

int main(int argc, char** argv) {
  using namespace tessera::tools;
  if (const auto code = RunWorker(argc, argv)) return *code;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
