// Fill*: initialisation of distributed tensors that does not depend on the
// mesh.
//
//   TESSERA_RETURN_IF_ERROR(FillNormal({.seed = 42, .stream = layer},
//                                      /*mean=*/0, /*stddev=*/0.02, weight));
//
// An element is a function of the key and of its row-major number in the whole
// tensor, so every mesh, spec and fused layout starts from the same bits, and
// ranks that hold the same element agree. It is computed in f64 and rounded
// once. Along partial axes the rank at 0 has the values, the others zeros.
// Numbers of different tensors are independent where their streams differ.
//
// All return InvalidArgument, with nothing written, if the tensor is not of a
// floating-point type or a parameter is invalid, and FailedPrecondition if it
// is not in host memory.
#ifndef TESSERA_TENSOR_PARALLEL_RANDOM_FILL_H_
#define TESSERA_TENSOR_PARALLEL_RANDOM_FILL_H_

#include "absl/status/status.h"
#include "tensor_parallel/random/philox.h"
#include "tensor_parallel/sharding/distributed_tensor.h"

namespace tessera::tensor_parallel {

// Evenly in [low, high), finite and low <= high; a narrow type may round up to
// high.
absl::Status FillUniform(const RandomKey& key, double low, double high,
                         DistributedTensor& tensor);

// `mean` and `stddev` are finite, `stddev` not negative.
absl::Status FillNormal(const RandomKey& key, double mean, double stddev,
                        DistributedTensor& tensor);

// Normal numbers of `mean` and `stddev` restricted to [low, high] by rejection.
// At least a quarter of all must be in this range. The tensor has fewer than
// 2^56 elements.
absl::Status FillTruncatedNormal(const RandomKey& key, double mean,
                                 double stddev, double low, double high,
                                 DistributedTensor& tensor);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_RANDOM_FILL_H_
