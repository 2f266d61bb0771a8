// A full disk, flipped bits and a truncated file while a sharded state trains
// from files: the affected rank's error names the file and the cause, the other
// ranks get it at once, and the last checkpoint loads.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/in_process/in_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/file/io_engine.h"
#include "offload/tier/file_tier.h"
#include "zero3/checkpoint/checkpoint_writer.h"
#include "zero3/checkpoint/load_checkpoint.h"
#include "zero3/state/sharded_state.h"
#include "zero3/state/testing/toy_training.h"

namespace tessera::zero3 {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::ResultOf;
using Values = std::vector<std::vector<double>>;

constexpr int64_t kRanks = 3;
constexpr int kStepsBefore = 2;

// The data of one run: a directory, and the fault after the checkpoint.
struct FaultRun {
  std::string directory;
  std::atomic<bool> is_full = false;
  std::atomic<int> file = -1;  // the descriptor of the tier's file
  std::function<void(FaultRun&)> break_it;
  std::atomic<int> left_off = 0;  // Ranks that have saved.
};

// Writes fail with ENOSPC when the run's disk is full. Records the descriptor
// of the tier's file, which has no name, so that the test can damage it.
class FillingEngine final : public offload::IoEngine {
 public:
  FillingEngine(std::unique_ptr<offload::IoEngine> inner, FaultRun& run)
      : inner_(std::move(inner)), run_(run) {}

  std::string_view name() const override { return "filling"; }
  void Submit(offload::IoRequest request) override {
    run_.file = request.fd;
    if (run_.is_full && request.kind == offload::IoRequest::Kind::kWrite) {
      request.kind = offload::IoRequest::Kind::kRead;
      request.bytes = 0;
      request.done = [done = std::move(request.done)](int64_t) {
        done(-ENOSPC);
      };
    }
    inner_->Submit(std::move(request));
  }

 private:
  const std::unique_ptr<offload::IoEngine> inner_;
  FaultRun& run_;
};

absl::StatusOr<std::unique_ptr<offload::FileTier>> TierOf(FaultRun& run) {
  offload::FileTierOptions options;
  options.path = run.directory;
  options.piece_bytes = 4096;
  options.bounce_bytes = 16 * 4096;
  options.space.growth_bytes = 0;
  options.wrap = [&run](std::unique_ptr<offload::IoEngine> inner) {
    return std::make_unique<FillingEngine>(std::move(inner), run);
  };
  return offload::FileTier::Create(
      std::make_shared<offload::Accounting>("file", offload::kUnlimited),
      options);
}

ShardedStateOptions OptionsOf(offload::MemoryTier* tier) {
  return {.stage = 3,
          .bucket_bytes = 300,
          .parameter_tier = tier,
          .gradient_tier = tier,
          .optimizer_tier = tier};
}

absl::Status Fill(ShardedState& state) {
  return state.Fill(
      [](const ModelParameter& parameter, int64_t begin, TensorView elements) {
        TESSERA_ASSIGN_OR_RETURN(const auto values, elements.AsSpan<float>());
        for (float& value : values) {
          value = static_cast<float>(
              testing::FirstValue(parameter.id.value(), begin++));
        }
        return absl::OkStatus();
      });
}

// Rank 1's state is in files. Trains, saves, and continues until it fails.
absl::Status TrainUntilItFails(FaultRun& run, collectives::Communicator& group,
                               Values& saved) {
  const int64_t rank = group.rank().value();
  std::unique_ptr<offload::FileTier> tier;
  if (rank == 1) {
    TESSERA_ASSIGN_OR_RETURN(tier, TierOf(run));
  }
  TESSERA_ASSIGN_OR_RETURN(
      auto state,
      ShardedState::Create(testing::ToyModel(DType::kF32),
                           OptionsOf(tier.get()), {.shard = &group}));
  TESSERA_RETURN_IF_ERROR(Fill(*state));
  for (int step = 0; step < kStepsBefore; ++step) {
    TESSERA_RETURN_IF_ERROR(testing::RunPart(*state, step, rank, true));
    TESSERA_RETURN_IF_ERROR(state->Step().status());
  }
  TESSERA_RETURN_IF_ERROR(
      SaveCheckpoint({.shard = &group}, {.directory = run.directory}, *state)
          .status());
  ++run.left_off;
  if (rank == 1) {
    while (run.left_off < kRanks) absl::SleepFor(absl::Milliseconds(1));
    run.break_it(run);
  }
  for (int step = kStepsBefore; step < kStepsBefore + 3; ++step) {
    TESSERA_RETURN_IF_ERROR(testing::RunPart(*state, step, rank, true));
    TESSERA_RETURN_IF_ERROR(state->Step().status());
  }
  TESSERA_ASSIGN_OR_RETURN(saved, testing::ReadValues(*state));
  return absl::OkStatus();
}

// Continues from the checkpoint, without files, to the end.
absl::Status GoOn(FaultRun& run, collectives::Communicator& group,
                  Values& end) {
  TESSERA_ASSIGN_OR_RETURN(
      auto state, ShardedState::Create(testing::ToyModel(DType::kF32),
                                       OptionsOf(nullptr), {.shard = &group}));
  TESSERA_ASSIGN_OR_RETURN(
      const LoadedCheckpoint loaded,
      LoadCheckpoint(absl::StrCat(run.directory, "/step-0000000", kStepsBefore),
                     {.shard = &group}, *state));
  for (int64_t step = loaded.step; step < kStepsBefore + 3; ++step) {
    TESSERA_RETURN_IF_ERROR(
        testing::RunPart(*state, step, group.rank().value(), true));
    TESSERA_RETURN_IF_ERROR(state->Step().status());
  }
  TESSERA_ASSIGN_OR_RETURN(end, testing::ReadValues(*state));
  return absl::OkStatus();
}

using Body = absl::Status (*)(FaultRun&, collectives::Communicator&,
                              Values& values);

std::vector<absl::Status> OnRanks(FaultRun& run, Body body, Values& values) {
  auto engines = collectives::CreateInProcessEngines(kRanks);
  std::vector<absl::Status> results(kRanks);
  std::vector<Values> of_ranks(kRanks);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < results.size(); ++r) {
    threads.emplace_back([&, r] {
      auto group = collectives::Communicator::Create(std::move((*engines)[r]));
      results[r] = body(run, **group, of_ranks[r]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  values = of_ranks[0];
  return results;
}

std::unique_ptr<FaultRun> NewRun(std::function<void(FaultRun&)> break_it) {
  static std::atomic<int> number = 0;
  auto run = std::make_unique<FaultRun>();
  run->directory = absl::StrCat(::testing::TempDir(), "/fault.", number++);
  std::filesystem::remove_all(run->directory);
  std::filesystem::create_directory(run->directory);
  run->break_it = std::move(break_it);
  return run;
}

// The values of a run without faults.
const Values& Undisturbed() {
  static Values& values = *new Values([] {
    const auto run = NewRun([](FaultRun&) {});
    Values end;
    for (const auto& result : OnRanks(*run, TrainUntilItFails, end)) {
      EXPECT_THAT(result, IsOk());
    }
    return end;
  }());
  return values;
}

auto Says(::testing::Matcher<std::string> text) {
  return ResultOf(
      [](const absl::Status& status) { return std::string(status.message()); },
      text);
}

// Rank 1 fails as `matcher` expects, the others soon get the reason, and all
// continue from the checkpoint as in a run without faults.
void ExpectClearAndRecoverable(FaultRun& run,
                               ::testing::Matcher<absl::Status> matcher) {
  Values values;
  const absl::Time start = absl::Now();
  const auto results = OnRanks(run, TrainUntilItFails, values);
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
  EXPECT_THAT(results[1], matcher);
  for (const size_t other : {0, 2}) {
    EXPECT_THAT(results[other],
                AllOf(AnyOf(StatusIs(absl::StatusCode::kAborted),
                            StatusIs(absl::StatusCode::kUnavailable)),
                      Says(HasSubstr("rank 1"))));
  }
  for (const auto& result : OnRanks(run, GoOn, values)) {
    EXPECT_THAT(result, IsOk());
  }
  EXPECT_EQ(values, Undisturbed());
}

TEST(StateFileFaultTest, AFullDiskIsToldAndTheLastCheckpointLoads) {
  const auto run = NewRun([](FaultRun& r) { r.is_full = true; });
  ExpectClearAndRecoverable(*run, StatusIs(absl::StatusCode::kResourceExhausted,
                                           AllOf(HasSubstr("/(scratch)"),
                                                 HasSubstr("No space left"))));
}

TEST(StateFileFaultTest, FlippedBitsAreToldAndTheLastCheckpointLoads) {
  const auto run = NewRun([](FaultRun& r) {
    // Opened again, without O_DIRECT.
    const int fd =
        open(absl::StrCat("/proc/self/fd/", r.file.load()).c_str(), O_RDWR);
    struct stat stat = {};
    fstat(fd, &stat);
    std::string bytes(static_cast<size_t>(stat.st_size), '\0');
    ASSERT_EQ(pread(fd, bytes.data(), bytes.size(), 0), stat.st_size);
    for (char& byte : bytes) byte = static_cast<char>(byte ^ 4);
    ASSERT_EQ(pwrite(fd, bytes.data(), bytes.size(), 0), stat.st_size);
    fsync(fd);
    close(fd);
  });
  ExpectClearAndRecoverable(
      *run, StatusIs(absl::StatusCode::kDataLoss,
                     AllOf(HasSubstr("block"), HasSubstr("/(scratch)"))));
}

TEST(StateFileFaultTest, ATruncatedFileIsToldAndTheLastCheckpointLoads) {
  const auto run =
      NewRun([](FaultRun& r) { ASSERT_EQ(ftruncate(r.file, 4096), 0); });
  ExpectClearAndRecoverable(
      *run, StatusIs(absl::StatusCode::kDataLoss,
                     AllOf(HasSubstr("block"), HasSubstr("/(scratch)"))));
}

}  // namespace
}  // namespace tessera::zero3
