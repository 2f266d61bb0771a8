// FillValues: the initial values of the elements that a rank owns.
#ifndef TESSERA_ZERO3_STATE_FIRST_VALUES_H_
#define TESSERA_ZERO3_STATE_FIRST_VALUES_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/device/staging.h"
#include "base/tensor/tensor_view.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/state/model_weights.h"
#include "zero3/state/optimizer_shard.h"
#include "zero3/state/state_device.h"

namespace tessera::zero3 {

// Sets elements [begin, begin + n) of a parameter: a tensor [n] of f32, or of
// f64 for f64 parameters.
using Filler = absl::FunctionRef<absl::Status(
    const ModelParameter& parameter, int64_t begin, TensorView elements)>;

// Initialises values and master weights. `threads` threads call `fill`
// concurrently and in any order, for ranges of the elements that this rank
// owns.
absl::Status FillValues(const StateContext& context, ModelWeights& weights,
                        OptimizerShard& optimizer, StagingPool& staging,
                        int threads, Filler fill);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_FIRST_VALUES_H_
