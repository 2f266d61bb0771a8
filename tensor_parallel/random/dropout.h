// Dropout: sets random elements to zero, the same elements on every mesh.
//
//   const DropoutMask mask = {.key = {.seed = 1, .stream = layer},
//                             .probability = 0.1,
//                             .rows = tokens};  // their numbers in the data
//   TESSERA_RETURN_IF_ERROR(ApplyDropout(mask, y));           // forward
//   TESSERA_RETURN_IF_ERROR(ApplyDropout(mask, y_gradient));  // backward
//
// Element (row, column) is dropped if the uniform number of index row * width +
// column is below the probability. So the mask is a function of only the key
// and the rows' numbers: it is never stored, and the backward, which is the
// same linear map, recomputes it. Kept elements are multiplied by 1 / (1 -
// probability) in f64 and rounded once. Source: Srivastava et al., JMLR 15,
// 2014.
#ifndef TESSERA_TENSOR_PARALLEL_RANDOM_DROPOUT_H_
#define TESSERA_TENSOR_PARALLEL_RANDOM_DROPOUT_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/random/philox.h"

namespace tessera::tensor_parallel {

struct DropoutMask {
  RandomKey key = {};
  double probability = 0;              // Of dropping an element; in [0, 1).
  std::span<const int64_t> rows = {};  // The number of each row.
};

// x is [rows, width] of a floating-point type, contiguous, in host memory.
// InvalidArgument, before anything is written, if x is invalid or the
// probability is not in [0, 1).
absl::Status ApplyDropout(const DropoutMask& mask, const TensorView& x);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_RANDOM_DROPOUT_H_
