// FillRoundedNormals: initial weights. Computes the numbers of Philox::Normal
// times a deviation, rounded to a type, five times as fast with vector
// instructions.
//
//   std::vector<BF16> weights(4096);
//   TESSERA_RETURN_IF_ERROR(FillRoundedNormals(
//       {.seed = 42, .stream = 7}, first, 0.02, DType::kBF16,
//       std::as_writable_bytes(std::span(weights))));
//
// The bits are those of the formula in float64, on every processor: vector code
// computes an interval that contains each number, and if both of its ends round
// to the same value, so does the number. Philox::Normal computes the remaining
// numbers, one in some hundred thousand (Ziv, Fast Evaluation of Elementary
// Mathematical Functions with Correctly Rounded Last Bit, ACM TOMS 17, 1991).
#ifndef TESSERA_TENSOR_PARALLEL_RANDOM_ROUNDED_NORMALS_H_
#define TESSERA_TENSOR_PARALLEL_RANDOM_ROUNDED_NORMALS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "tensor_parallel/random/philox.h"

namespace tessera::tensor_parallel {

// values[i] is Philox(key).Normal(first + i) * deviation, rounded to `dtype`
// from float64. InvalidArgument if the bytes are not a whole number of
// elements. Executed on the calling thread; any partition of the indices gives
// the same bits.
absl::Status FillRoundedNormals(const RandomKey& key, uint64_t first,
                                double deviation, DType dtype,
                                std::span<std::byte> values);

namespace internal {

// The intervals [low[i], high[i]] of Philox(key).Normal(2 * first_pair + i) *
// deviation. The size of `low` and `high` is a multiple of 16.
struct NormalBounds {
  RandomKey key = {};
  uint64_t first_pair = 0;
  double deviation = 1;
  std::span<double> low = {}, high = {};
};
void BoundNormals(const NormalBounds& bounds);

}  // namespace internal
}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_RANDOM_ROUNDED_NORMALS_H_
