// Runs the benchmark as real jobs: tests its measurements, the faults it
// detects, and that no process is left behind. This binary is its own worker.

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/engine/engine_registry.h"
#include "collectives/shared_memory/shared_memory.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/comm_bench/bench_run.h"
#include "tools/comm_bench/comm_bench_main.h"
#include "tools/launch/rank_processes.h"

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
        TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                                 collectives::CreateSharedMemoryEngine(
                                     *setup.store, {.name = "faulty"}));
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

struct Outcome {
  absl::Status status;
  std::vector<nlohmann::ordered_json> rows;
};

// A run of two sizes and five iterations on two ranks, unless `flags`, which
// come last, say otherwise.
Outcome Measure(const std::string& engines,
                const std::vector<std::string>& flags = {}) {
  std::vector<std::string> arguments = {
      "-b8", "-e4096", "-f512", "-n5", "-w1", "--np=2", "--engine=" + engines};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  const auto options = ParseOptions(arguments);
  if (!options.ok()) return {options.status(), {}};
  Outcome run;
  run.status = RunBenchmark(*options, arguments,
                            [&](const nlohmann::ordered_json& line) {
                              if (line.contains("row")) {
                                run.rows.push_back(line["row"]);
                              }
                            });
  // No process may be left, whatever happened.
  EXPECT_THAT(ListChildren(), IsOkAndHolds(IsEmpty()));
  return run;
}

TEST(CommBenchTest, ComparesEnginesCaseByCase) {
  const Outcome run = Measure("shared_memory,in_process");
  TESSERA_ASSERT_OK(run.status);
  ASSERT_EQ(run.rows.size(), 4u);
  for (const auto& row : run.rows) {
    EXPECT_GT(row["time_us"], 0);
    EXPECT_GT(row["in_place_time_us"], 0);
    EXPECT_EQ(row["iterations"], 5);
    EXPECT_EQ(row["wrong"], 0);
    EXPECT_EQ(row["algorithm"], "engine");
  }
  EXPECT_EQ(run.rows[0]["engine"], "shared_memory");
  EXPECT_EQ(run.rows[0]["bytes"], 8);
  EXPECT_EQ(run.rows[0]["ratio"], 1);
  EXPECT_EQ(run.rows[1]["engine"], "in_process");
  EXPECT_DOUBLE_EQ(run.rows[1]["ratio"],
                   run.rows[1]["time_us"].get<double>() /
                       run.rows[0]["time_us"].get<double>());
  EXPECT_EQ(run.rows[2]["bytes"], 4096);
}

TEST(CommBenchTest, EveryAlgorithmOfEveryCollectiveIsCorrect) {
  for (const std::string engine : {"shared_memory", "in_process"}) {
    for (const std::string world : {"1", "3"}) {
      for (const std::string registered : {"false", "true"}) {
        if (world == "1" && registered == "true") continue;
        const Outcome run = Measure(
            engine, {"--np=" + world, "--op=all", "--algorithm=all,prepared",
                     "-n2", "-w0", "--registered=" + registered});
        EXPECT_THAT(run.status, IsOk()) << engine << " " << world;
        EXPECT_GT(run.rows.size(), 69u);
      }
    }
  }
}

TEST(CommBenchTest, EveryReductionAndTypeIsCorrect) {
  for (const collectives::ReduceOp op : collectives::kAllReduceOps) {
    const std::string types =
        collectives::IsBitwise(op) ? "i64,i8,u8" : "f64,bf16,f16,i64,i8,u8";
    EXPECT_THAT(
        Measure("in_process", {"--np=3", "-n1", "--dtype=" + types,
                               absl::StrCat("--reduction=", ReduceOpName(op))})
            .status,
        IsOk())
        << op;
  }
}

TEST(CommBenchTest, ComparesTheAdaptiveChoiceWithAllAlgorithms) {
  setenv("XDG_CACHE_HOME", ::testing::TempDir().c_str(), 1);
  const Outcome run =
      Measure("in_process,shared_memory", {"--algorithm=adaptive,all"});
  TESSERA_ASSERT_OK(run.status);
  int choices = 0;
  for (const auto& row : run.rows) choices += row["algorithm"] == "adaptive";
  EXPECT_EQ(choices, 4);
  EXPECT_GT(run.rows.size(), 12u);
}

TEST(CommBenchTest, WrongResultEndsTheRunWithRankAndElement) {
  const Outcome run = Measure("in_process,wrong");
  EXPECT_THAT(run.status, StatusIs(absl::StatusCode::kInternal,
                                   AllOf(HasSubstr("engine wrong with 2 ranks"),
                                         HasSubstr("rank 1: wrong result"),
                                         HasSubstr("element 5 is "))));
  EXPECT_EQ(run.rows.size(), 2u);  // 8 bytes have no element 5.
}

TEST(CommBenchTest, WithoutChecksWrongResultsAreNotDetected) {
  EXPECT_THAT(Measure("wrong", {"--nocheck"}).status, IsOk());
}

TEST(CommBenchTest, ReportsADeadWorkerAndEndsTheOthers) {
  const Outcome run = Measure("shared_memory,dying");
  EXPECT_THAT(run.status, StatusIs(absl::StatusCode::kAborted,
                                   AllOf(HasSubstr("engine dying with 2 ranks"),
                                         HasSubstr(": rank 1 (pid "),
                                         HasSubstr("killed by SIGKILL"))));
}

TEST(CommBenchTest, ReportsTheErrorOfAnEngine) {
  EXPECT_THAT(Measure("failing").status,
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("engine failing with 2 ranks"),
                             HasSubstr("the cable is out"))));
}

TEST(CommBenchTest, ReportsWhyAnEngineCannotBeCreated) {
  EXPECT_THAT(Measure("unmakeable").status,
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("engine unmakeable with 2 ranks"),
                             HasSubstr("rank 1: there is no such card"))));
}

TEST(CommBenchTest, RejectsAnUnknownEngine) {
  EXPECT_THAT(Measure("in_process,tin_cans").status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--engine=tin_cans"),
                             HasSubstr("the engines are: "),
                             HasSubstr("shared_memory"))));
}

TEST(CommBenchTest, SignalEndsTheRunAndItsProcesses) {
  std::thread sender([] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    usleep(700'000);
    kill(getpid(), SIGTERM);
  });
  const Outcome run = Measure("shared_memory", {"-e1M", "-b1M", "-n100000"});
  sender.join();
  EXPECT_THAT(run.status, StatusIs(absl::StatusCode::kAborted,
                                   HasSubstr("ended by SIGTERM")));
}

}  // namespace
}  // namespace tessera::tools

int main(int argc, char** argv) {
  using namespace tessera::tools;
  if (const auto code = RunWorker(argc, argv)) return *code;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
