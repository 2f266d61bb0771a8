#include "tools/comm_bench/timing.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/functional/function_ref.h"
#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"

namespace tessera::tools {
namespace {

using collectives::Buffer;
using collectives::CallOptions;
using collectives::Communicator;
using collectives::MonotonicNanos;
using collectives::Reduction;
using collectives::Work;

// Seconds that `body` takes after all ranks have come.
absl::StatusOr<double> TimeOnce(Communicator& communicator,
                                absl::FunctionRef<absl::Status()> body) {
  TESSERA_RETURN_IF_ERROR(communicator.Barrier());
  const int64_t begin = MonotonicNanos();
  TESSERA_RETURN_IF_ERROR(body());
  const int64_t end = MonotonicNanos();
  // Where ranks share processors, what this one does next would keep another
  // from finishing.
  TESSERA_RETURN_IF_ERROR(communicator.Barrier());
  return static_cast<double>(end - begin) * 1e-9;
}

absl::Status RunBatch(Communicator& communicator, const CallOptions& call,
                      int64_t batch, const Operands& operands) {
  for (int64_t i = 0; i < batch; ++i) {
    TESSERA_RETURN_IF_ERROR(
        communicator.Run(operands.operation(i % operands.slots()), call));
  }
  return absl::OkStatus();
}

// Arithmetic in registers and the first cache, about a microsecond a unit.
// Returns its result, so that it is not left out.
double Compute(int64_t units) {
  std::array<double, 64> x;
  x.fill(1.0);
  for (int64_t unit = 0; unit < units; ++unit) {
    for (int step = 0; step < 40; ++step) {
      for (double& value : x) value = value * 0.999999 + 1e-6;
    }
  }
  double sum = 0;
  for (double value : x) sum += value;
  return sum;
}

absl::Status CheckComputed(double result) {
  if (std::isfinite(result)) return absl::OkStatus();
  return absl::InternalError("the computation beside the operation went wrong");
}

// The units that take as long as an operation on the slowest rank; the same on
// all of them.
absl::StatusOr<int64_t> CalibrateUnits(Communicator& communicator,
                                       const CallOptions& call,
                                       Operands& operands) {
  constexpr int kRuns = 5;
  constexpr int64_t kUnits = 200;
  std::array<double, 2> fastest = {1e9, 1e9};
  for (int run = 0; run < kRuns; ++run) {
    operands.Rewrite(run);
    TESSERA_ASSIGN_OR_RETURN(
        const double operation, TimeOnce(communicator, [&] {
          return communicator.Run(operands.operation(0), call);
        }));
    TESSERA_ASSIGN_OR_RETURN(const double compute, TimeOnce(communicator, [&] {
                               return CheckComputed(Compute(kUnits));
                             }));
    fastest = {std::min(fastest[0], operation), std::min(fastest[1], compute)};
  }
  TESSERA_RETURN_IF_ERROR(communicator.AllReduce(
      Buffer(fastest.data(), 2, DType::kF64), Reduction::Max()));
  return std::max<int64_t>(
      1, std::llround(static_cast<double>(kUnits) * fastest[0] / fastest[1]));
}

}  // namespace

absl::StatusOr<std::vector<double>> TimeOperation(Communicator& communicator,
                                                  const CallOptions& call,
                                                  const Task& task,
                                                  Operands& operands) {
  std::vector<double> seconds;
  const int64_t total = task.warmup + task.iterations;
  for (int64_t i = 0; i < total; ++i) {
    const int64_t iteration = task.first_iteration + i;
    operands.Rewrite(iteration);
    TESSERA_ASSIGN_OR_RETURN(const double elapsed, TimeOnce(communicator, [&] {
                               return RunBatch(communicator, call, task.batch,
                                               operands);
                             }));
    if (i >= task.warmup) {
      seconds.push_back(elapsed / static_cast<double>(task.batch));
    }
    if (task.check && (i == 0 || i == total - 1)) {
      TESSERA_RETURN_IF_ERROR(operands.Check(iteration));
    }
  }
  return seconds;
}

absl::StatusOr<std::vector<double>> TimeOverlap(Communicator& communicator,
                                                const CallOptions& call,
                                                const Task& task,
                                                Operands& operands) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t units,
                           CalibrateUnits(communicator, call, operands));
  std::vector<double> seconds;
  for (int64_t i = 0; i < task.iterations; ++i) {
    const int64_t iteration = task.first_iteration + i;
    operands.Rewrite(iteration);
    TESSERA_ASSIGN_OR_RETURN(const double compute, TimeOnce(communicator, [&] {
                               return CheckComputed(Compute(units));
                             }));
    TESSERA_ASSIGN_OR_RETURN(
        const double operation, TimeOnce(communicator, [&] {
          return communicator.Run(operands.operation(0), call);
        }));
    operands.Rewrite(iteration + 1);
    TESSERA_ASSIGN_OR_RETURN(
        const double both, TimeOnce(communicator, [&]() -> absl::Status {
          TESSERA_ASSIGN_OR_RETURN(
              const Work work, communicator.Start(operands.operation(0), call));
          TESSERA_RETURN_IF_ERROR(CheckComputed(Compute(units)));
          return work.Wait();
        }));
    seconds.insert(seconds.end(), {compute, operation, both});
    if (task.check && (i == 0 || i == task.iterations - 1)) {
      TESSERA_RETURN_IF_ERROR(operands.Check(iteration + 1));
    }
  }
  return seconds;
}

}  // namespace tessera::tools
