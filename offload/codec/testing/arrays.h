// Arrays of elements for the tests and the benchmark of codecs.
#ifndef TESSERA_OFFLOAD_CODEC_TESTING_ARRAYS_H_
#define TESSERA_OFFLOAD_CODEC_TESTING_ARRAYS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/dtype/dtype.h"
#include "offload/codec/codec.h"

namespace tessera::offload {

using Bytes = std::vector<std::byte>;

// Rounded to `dtype`.
Bytes ArrayOf(DType dtype, const std::vector<double>& values);
// Normally distributed, as weights are; times 10000 for integers.
Bytes NormalArray(DType dtype, size_t count, double deviation, uint64_t seed);
Bytes RandomBytes(size_t count, uint64_t seed);
// All 65536 patterns of a type of two bytes.
Bytes AllPatterns();

double ValueAt(DType dtype, std::span<const std::byte> values, size_t index);

// Fail the test if the codec returns an error.
Bytes Encoded(const Codec& codec, DType dtype, const Bytes& values);
Bytes Decoded(const Codec& codec, DType dtype, const Bytes& encoded,
              size_t bytes);
// The largest error as a share of MaxError's bound for its value.
double WorstShareOfBound(const Codec& codec, DType dtype, const Bytes& values);

// Runs `body` once for each instruction set that the processor supports and the
// kernels are compiled for.
void ForEachInstructionSet(const std::function<void()>& body);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_TESTING_ARRAYS_H_
