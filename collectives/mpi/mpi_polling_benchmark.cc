// Measures the cost of polling MPI until a collective is complete, compared
// with MPI's blocking call (the lower bound). Run by every rank of an MPI job.
//
//   mpirun -n 2 bazel-bin/collectives/mpi/mpi_polling_benchmark
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "collectives/engine/operation_context.h"
#include "collectives/mpi/mpi_engine.h"

namespace tessera::collectives {
namespace {

constexpr int kRounds = 25;

// The slowest rank's microseconds per call in the best (least disturbed) round.
double Measure(int iterations, const std::function<void()>& call) {
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (int i = 0; i < iterations; ++i) call();
    double mine = (MPI_Wtime() - begin) / iterations * 1e6, slowest = 0;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    rounds.push_back(slowest);
  }
  return *std::min_element(rounds.begin(), rounds.end());
}

void RunOn(Engine& engine, std::vector<float>& in, std::vector<float>& out) {
  Scratch scratch;
  Signature signature;
  OperationContext context(signature, MonotonicNanos() + 60'000'000'000,
                           scratch);
  const absl::Status status =
      engine.Run(AllReduceOf(ConstBuffer(std::span<const float>(in)),
                             Buffer(std::span<float>(out)), Reduction::Sum()),
                 context);
  if (!status.ok()) std::printf("%s\n", status.ToString().c_str());
}

int Main() {
  MpiOptions options;
  auto polled = CreateMpiEngine(options);
  options.blocking = true;
  auto blocking = CreateMpiEngine(options);
  options.blocking = false;
  options.check_signatures = true;
  auto checked = CreateMpiEngine(options);
  if (!polled.ok() || !blocking.ok() || !checked.ok()) return 1;
  const bool speaks = (*polled)->rank() == Rank(0);
  if (speaks) {
    std::printf("%10s %12s %10s %10s %10s %8s\n", "bytes", "MPI us", "blocking",
                "polled", "checked", "polled/MPI");
  }
  for (int64_t bytes = 8; bytes <= 16 << 20; bytes *= 8) {
    const auto count = static_cast<size_t>(bytes) / sizeof(float);
    std::vector<float> in(count, 1), out(count);
    const int iterations =
        static_cast<int>(std::clamp<int64_t>((1 << 20) / bytes, 1, 300));
    const double floor = Measure(iterations, [&] {
      MPI_Allreduce(in.data(), out.data(), static_cast<int>(count), MPI_FLOAT,
                    MPI_SUM, MPI_COMM_WORLD);
    });
    std::vector<double> times;
    for (Engine* engine : {blocking->get(), polled->get(), checked->get()}) {
      times.push_back(Measure(iterations, [&] { RunOn(*engine, in, out); }));
    }
    if (speaks) {
      std::printf("%10lld %12.2f %10.2f %10.2f %10.2f %8.2f\n",
                  static_cast<long long>(bytes), floor, times[0], times[1],
                  times[2], times[1] / floor);
    }
  }
  return 0;
}

}  // namespace
}  // namespace tessera::collectives

int main() { return tessera::collectives::Main(); }
