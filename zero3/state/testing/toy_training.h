// A small model for tests whose gradients depend on its values, the rank and
// the micro-batch, trained with any ShardedStateOptions.
#ifndef TESSERA_ZERO3_STATE_TESTING_TOY_TRAINING_H_
#define TESSERA_ZERO3_STATE_TESTING_TOY_TRAINING_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device_timeline.h"
#include "zero3/state/sharded_state.h"

namespace tessera::zero3::testing {

// Layers of odd shapes: matrices, vectors, a scalar, an empty tensor, a frozen
// one. With kMuon the layers' matrices are orthogonalized.
ModelParameters ToyModel(DType dtype,
                         OptimizerKind optimizer = OptimizerKind::kAdamW);

struct ToyOptions {
  DType dtype = DType::kF32;
  // Ranks of a shard group, and how many groups replicate it.
  int64_t ranks = 1;
  int64_t replicas = 1;
  int steps = 20;
  // Parts of the data, a multiple of the number n of ranks; rank r takes parts
  // r, r + n, ...
  int64_t parts = 24;
  // Gradients are requested before the first part of a step, and reduced after
  // the last one.
  bool holds_gradients = false;
  // CommunicatorOptions::reproducible.
  bool reproducible = false;
  // With kMuon the update of a matrix is its negative direction, where the
  // direction is that of MatrixShards.
  ShardedStateOptions state = {};
  // Trains each rank on an emulated device with a seed derived from this one;
  // 0: on the CPU.
  uint64_t device_seed = 0;
  // The timing of the emulated device (base/device/device_timeline.h).
  std::optional<DeviceTiming> timing = {};
  // Changes the options of a rank; called on its thread.
  std::function<void(int64_t rank, ShardedStateOptions&)> adapt = {};
};

struct ToyResult {
  // The values of every parameter at the end, as f64.
  std::vector<std::vector<double>> values;
  std::vector<UpdateReport> reports;
  // Counts of the rank's device, by step.
  std::vector<int64_t> host_waits, allocations;
  std::vector<int64_t> waits_in_step;  // The part of host_waits in Step.
  SimulatedTime time;    // The time of all steps, by ToyOptions::timing.
  offload::Usage usage;  // At the end, of this rank's own memory.
};

// Trains on every rank of all groups; returns each rank's result or error.
std::vector<absl::StatusOr<ToyResult>> Train(const ToyOptions& options);

// Trains on one rank without ZeRO, in f64 and with the formulae of the
// optimizer. Shares no code with the library.
std::vector<std::vector<double>> TrainByFormula(const ToyOptions& options);

// The first value of an element, and its gradient in a part of the data.
double FirstValue(int64_t parameter, int64_t element);
double GradientOf(int64_t step, int64_t part, int64_t parameter,
                  int64_t element, double value);

// One forward and backward pass over `part`, through the state.
absl::Status RunPart(ShardedState& state, int64_t step, int64_t part,
                     bool reduce);
// Returns every element of every parameter.
absl::StatusOr<std::vector<std::vector<double>>> ReadValues(
    ShardedState& state);

}  // namespace tessera::zero3::testing

#endif  // TESSERA_ZERO3_STATE_TESTING_TOY_TRAINING_H_
