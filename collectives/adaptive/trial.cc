#include "collectives/adaptive/trial.h"

#include <algorithm>

#include "base/status_macros.h"

namespace tessera::collectives {
namespace {

bool IsParted(OpKind kind) {
  return kind == OpKind::kReduceScatter || kind == OpKind::kAllGather ||
         kind == OpKind::kGather || kind == OpKind::kScatter ||
         kind == OpKind::kAllToAll;
}

absl::StatusOr<double> TakeTurn(Communicator& communicator,
                                const Operation& operation,
                                const Trial& trial) {
  CallOptions call;
  call.algorithm = trial.algorithm;
  TESSERA_RETURN_IF_ERROR(communicator.Barrier());
  const int64_t begin = MonotonicNanos();
  for (int64_t i = 0; i < trial.batch; ++i) {
    TESSERA_RETURN_IF_ERROR(communicator.Run(operation, call));
  }
  const auto elapsed = static_cast<double>(MonotonicNanos() - begin) * 1e-9;
  return std::max(elapsed, 1e-9) / static_cast<double>(trial.batch);
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

int64_t TrialBytes(OpKind kind, int64_t bytes, int64_t ranks) {
  if (kind == OpKind::kBarrier) return 0;
  const int64_t unit = IsParted(kind) ? 4 * ranks : 4;
  return std::max<int64_t>(1, bytes / unit) * unit;
}

Operation TrialBuffers::OperationOf(OpKind kind, int64_t bytes,
                                    const Communicator& communicator) {
  const int64_t whole = bytes / 4;
  const int64_t block = whole / communicator.size();
  const bool is_root = communicator.rank() == Rank(0);
  const auto buffer = [](std::vector<float>& memory, int64_t count) {
    return Buffer(memory.data(), count, DType::kF32);
  };
  const bool parts_input =
      kind == OpKind::kReduceScatter || kind == OpKind::kScatter;
  const bool parts_output =
      kind == OpKind::kAllGather || kind == OpKind::kGather;
  Operation operation;
  operation.kind = kind;
  operation.input = buffer(input_, parts_output ? block : whole);
  operation.output = buffer(output_, parts_input ? block : whole);
  // What a rank other than the root does not have.
  if (!is_root) {
    if (kind == OpKind::kScatter || kind == OpKind::kBroadcast) {
      operation.input.count = 0;
    }
    if (kind == OpKind::kGather || kind == OpKind::kReduce) {
      operation.output.count = 0;
    }
  }
  return operation;
}

absl::Status RunTrials(Communicator& communicator, TrialBuffers& buffers,
                       int64_t turns, std::span<Trial> trials) {
  if (trials.empty()) return absl::OkStatus();
  std::vector<Operation> operations;
  for (const Trial& trial : trials) {
    operations.push_back(
        buffers.OperationOf(trial.kind, trial.bytes, communicator));
  }
  // By turn, then by trial.
  std::vector<double> seconds;
  for (int64_t turn = -1; turn < turns; ++turn) {
    for (size_t i = 0; i < trials.size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(
          const double elapsed,
          TakeTurn(communicator, operations[i], trials[i]));
      if (turn >= 0) seconds.push_back(elapsed);
    }
  }
  TESSERA_RETURN_IF_ERROR(
      communicator.AllReduce(Buffer(std::span(seconds)), Reduction::Max()));
  for (size_t i = 0; i < trials.size(); ++i) {
    std::vector<double> own;
    for (size_t at = i; at < seconds.size(); at += trials.size()) {
      own.push_back(seconds[at]);
    }
    trials[i].seconds = Median(std::move(own));
  }
  return absl::OkStatus();
}

}  // namespace tessera::collectives
