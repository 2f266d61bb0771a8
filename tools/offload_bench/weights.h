// The data of every measurement: normally distributed weights, the same in
// every run and on every machine.
#ifndef TESSERA_TOOLS_OFFLOAD_BENCH_WEIGHTS_H_
#define TESSERA_TOOLS_OFFLOAD_BENCH_WEIGHTS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/memory.h"

namespace tessera::offload_bench {

// The deviation of the weights of a large model's layers.
inline constexpr double kDeviation = 0.02;

// `count` elements of normal(0, kDeviation), computed in f64 and rounded to
// `dtype`, a floating type. Aligned to 4096 bytes.
absl::StatusOr<Buffer> NormalWeights(DType dtype, int64_t count, uint64_t seed);

// `count` bytes with nothing in common, which no device stores in fewer.
absl::StatusOr<Buffer> RandomBytes(int64_t count, uint64_t seed);

}  // namespace tessera::offload_bench

#endif  // TESSERA_TOOLS_OFFLOAD_BENCH_WEIGHTS_H_
