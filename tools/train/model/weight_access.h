// WeightAccess: weights come when a layer needs them and may go when it is
// done, as when they are partitioned over ranks.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_WEIGHT_ACCESS_H_
#define TESSERA_TOOLS_TRAIN_MODEL_WEIGHT_ACCESS_H_

#include <span>

#include "absl/status/status.h"
#include "tensor_parallel/layers/parameter.h"

namespace tessera::train {

class WeightAccess {
 public:
  virtual ~WeightAccess() = default;

  // The values of these are bound until Done. One set at a time.
  virtual absl::Status Use(
      std::span<tensor_parallel::Parameter* const> parameters) = 0;
  virtual absl::Status Done(
      std::span<tensor_parallel::Parameter* const> parameters) = 0;
};

// Weights that are always there.
class ResidentWeights final : public WeightAccess {
 public:
  absl::Status Use(std::span<tensor_parallel::Parameter* const>) override {
    return absl::OkStatus();
  }
  absl::Status Done(std::span<tensor_parallel::Parameter* const>) override {
    return absl::OkStatus();
  }
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_WEIGHT_ACCESS_H_
