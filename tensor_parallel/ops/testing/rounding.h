// Bounds of the errors that rounding inside an operation causes.
// rounding_test.cc compares them with models of the hardware.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_TESTING_ROUNDING_H_
#define TESSERA_TENSOR_PARALLEL_OPS_TESTING_ROUNDING_H_

#include "base/device/device.h"

namespace tessera::tensor_parallel {

enum class Arithmetic {
  // All sums are in the type of statistics (ops/ops.h). In bf16, attention may
  // round its weights and the gradients of its scores before it multiplies
  // them.
  kStatistics,
  // The arithmetic of GPU libraries: cuDNN also rounds attention's output and
  // its gradients to bf16, and tensor cores add products of fp8 with fewer
  // bits.
  kTensorCores,
};

// `queue` is that of the device, not the host queue of UploadOperands().
inline Arithmetic ArithmeticOf(const Queue& queue) {
  return queue.native_handle() == nullptr ? Arithmetic::kStatistics
                                          : Arithmetic::kTensorCores;
}

// The largest relative error of a number rounded to bf16.
inline constexpr double kBF16Rounding = 0x1p-8;

// The largest error of a sum of fp8 products, given the sum of their
// magnitudes. Hopper aligns 32 products and the sum so far to the largest
// exponent and truncates all of them to 13 bits after the point (arXiv
// 2511.10909). Sums are promoted to f32 every 128 products, or never if they
// may be fast.
inline double Fp8SumError(Arithmetic arithmetic, double magnitudes) {
  return arithmetic == Arithmetic::kTensorCores ? 0x1p-11 * magnitudes : 0;
}

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_TESTING_ROUNDING_H_
