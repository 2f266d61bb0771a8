// The cost of a checkpoint of one rank, compared with the cost of moving its
// bytes:
//
//   start   the time for which training pauses; floor: memcpy
//   save    streamed to a synced file; floor: write and fsync of the same bytes
//   load    from the page cache; floor: read of the same bytes
//
// share_of_floor is the time of the floor divided by the measured time, in the
// same run.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "collectives/in_process/in_process.h"
#include "zero3/checkpoint/checkpoint_writer.h"
#include "zero3/checkpoint/load_checkpoint.h"

namespace tessera::zero3 {
namespace {

constexpr int64_t kElements = int64_t{1} << 22;
constexpr int64_t kBytes = 14 * kElements;  // bf16, master, two moments.

double SecondsOf(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - start;
  return took.count();
}

double LeastSeconds(const std::function<void()>& work) {
  double best = 1e9;
  for (int i = 0; i < 3; ++i) best = std::min(best, SecondsOf(work));
  return best;
}

// One rank with a state, a writer and a directory.
class Bench {
 public:
  Bench() {
    char name[] = "/tmp/checkpoint_benchmark.XXXXXX";
    directory_ = mkdtemp(name);
    auto engines = collectives::CreateInProcessEngines(1);
    group_ = *collectives::Communicator::Create(std::move((*engines)[0]));
    const ModelParameters model = *ModelParameters::Builder()
                                       .Add({.name = "weight",
                                             .shape = {kElements},
                                             .dtype = DType::kBF16})
                                       .Build();
    state_ = *ShardedState::Create(model, {}, {.shard = group_.get()});
    writer_ = *CheckpointWriter::Create({.shard = group_.get()},
                                        {.directory = directory_, .keep = 1});
  }
  ~Bench() {
    writer_.reset();
    std::filesystem::remove_all(directory_);
  }

  ShardedState& state() { return *state_; }
  CheckpointWriter& writer() { return *writer_; }
  collectives::Communicator& group() { return *group_; }
  std::string File(const std::string& name) const {
    return absl::StrCat(directory_, "/", name);
  }

 private:
  std::string directory_;
  std::unique_ptr<collectives::Communicator> group_;
  std::unique_ptr<ShardedState> state_;
  std::unique_ptr<CheckpointWriter> writer_;
};

void Report(benchmark::State& state, double floor, double seconds) {
  state.SetBytesProcessed(state.iterations() * kBytes);
  state.counters["share_of_floor"] =
      floor * static_cast<double>(state.iterations()) / seconds;
}

void BM_Start(benchmark::State& state) {
  Bench bench;
  std::vector<char> from(kBytes, 1), to(kBytes, 2);
  const double floor = LeastSeconds([&] {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::ClobberMemory();
  });
  double seconds = 0;
  for (auto _ : state) {
    PendingCheckpoint pending;
    const double took =
        SecondsOf([&] { pending = bench.writer().Start(bench.state(), {}); });
    state.SetIterationTime(took);
    seconds += took;
    if (!pending.Wait().ok()) state.SkipWithError("it was not written");
  }
  Report(state, floor, seconds);
}
BENCHMARK(BM_Start)->UseManualTime();

void BM_Save(benchmark::State& state) {
  Bench bench;
  const std::vector<char> bytes(kBytes, 1);
  const std::string file = bench.File("floor");
  const double floor = LeastSeconds([&] {
    const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600);
    for (int64_t at = 0; fd >= 0 && at < kBytes;) {
      const ssize_t n = write(fd, bytes.data() + at, bytes.size() - at);
      if (n <= 0) break;
      at += n;
    }
    fsync(fd);
    close(fd);
    unlink(file.c_str());
  });
  double seconds = 0;
  for (auto _ : state) {
    const double took = SecondsOf([&] {
      if (!bench.writer().Save(bench.state(), {}).ok()) {
        state.SkipWithError("it was not written");
      }
    });
    state.SetIterationTime(took);
    seconds += took;
  }
  Report(state, floor, seconds);
}
BENCHMARK(BM_Save)->UseManualTime();

void BM_Load(benchmark::State& state) {
  Bench bench;
  const auto path = bench.writer().Save(bench.state(), {});
  if (!path.ok()) {
    state.SkipWithError("it was not written");
    return;
  }
  std::vector<char> bytes(kBytes, 1);
  const std::string file = absl::StrCat(*path, "/rank-00000.state");
  const double floor = LeastSeconds([&] {
    const int fd = open(file.c_str(), O_RDONLY);
    benchmark::DoNotOptimize(pread(fd, bytes.data(), bytes.size(), 0));
    close(fd);
  });
  double seconds = 0;
  for (auto _ : state) {
    const double took = SecondsOf([&] {
      if (!LoadCheckpoint(*path, {.shard = &bench.group()}, bench.state())
               .ok()) {
        state.SkipWithError("it was not loaded");
      }
    });
    state.SetIterationTime(took);
    seconds += took;
  }
  Report(state, floor, seconds);
}
BENCHMARK(BM_Load)->UseManualTime();

}  // namespace
}  // namespace tessera::zero3
