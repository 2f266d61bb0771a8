// WeightAccess: where the values and gradients of a rank's layers are while a
// step runs. Its windows are those of LlamaLayers: lists of parameters that are
// used together, a layer's.
//
//   weights.StartGather(3);                // Goes on beside other work.
//   weights.UseValues(3);                  // The layer may compute.
//   weights.UseGradients(3);               // Its backward may add to
//   gradients. weights.Reduce(3);                     // Sums over
//   data-parallel ranks. weights.Release(3);
#ifndef TESSERA_TOOLS_TRAIN_MODEL_WEIGHT_ACCESS_H_
#define TESSERA_TOOLS_TRAIN_MODEL_WEIGHT_ACCESS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/parameter.h"

namespace tessera::train {

class WeightAccess {
 public:
  virtual ~WeightAccess() = default;

  // Collectives of data-parallel ranks, which make them in the same order.
  virtual absl::Status StartGather(size_t window) = 0;
  virtual absl::Status Reduce(size_t window) = 0;

  // Returns when the window's parameters are bound to their values, or to
  // gradients to be added to.
  virtual absl::Status UseValues(size_t window) = 0;
  virtual absl::Status UseGradients(size_t window) = 0;
  // The values that StartGather has made.
  virtual absl::Status Release(size_t window) = 0;

  // The sums that this rank owns of a parameter's gradient after Reduce, in any
  // shape; until the optimizer's step.
  virtual absl::StatusOr<TensorView> OwnGradient(
      const tensor_parallel::Parameter& parameter) = 0;
};

// Weights that are in the layers' own memory at all times.
class ResidentWeights final : public WeightAccess {
 public:
  absl::Status StartGather(size_t) override { return absl::OkStatus(); }
  absl::Status Reduce(size_t) override { return absl::OkStatus(); }
  absl::Status UseValues(size_t) override { return absl::OkStatus(); }
  absl::Status UseGradients(size_t) override { return absl::OkStatus(); }
  absl::Status Release(size_t) override { return absl::OkStatus(); }
  absl::StatusOr<TensorView> OwnGradient(
      const tensor_parallel::Parameter& parameter) override {
    return parameter.gradient();
  }
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_WEIGHT_ACCESS_H_
