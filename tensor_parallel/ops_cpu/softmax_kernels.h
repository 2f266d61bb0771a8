// What attention does to a tile of scores between its products. Internal.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_SOFTMAX_KERNELS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_SOFTMAX_KERNELS_H_

#include <cstdint>

namespace tessera::tensor_parallel::cpu {

// A tile of rows, `stride` elements apart: a multiple of 64 bytes that can be
// read and written to its end. `counts` of each are seen; at and after that,
// up to `width`, results are zero.
template <typename S>
struct ScoreTile {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t stride = 0;
  const int64_t* counts = nullptr;
  S* scores = nullptr;
};

// Turns scores s to exp(s - largest), where `largest` is that of this tile and
// before; adds these to `sum` and scales what was there, and the rows of
// `output` [rows, d], to the new `largest`.
template <typename S>
struct SoftmaxJob {
  ScoreTile<S> tile;
  S* largest = nullptr;
  S* sum = nullptr;
  S* output = nullptr;
  int64_t d = 0;
};

// Turns scores s to p = exp(s - log_sum_exp), and `products` g of the output's
// gradient and values, laid out as scores, to p (g - delta).
template <typename S>
struct SoftmaxGradientJob {
  ScoreTile<S> tile;
  const S* log_sum_exp = nullptr;
  const S* delta = nullptr;
  S* products = nullptr;
};

// By the best instruction set that this processor has.
void RunSoftmax(const SoftmaxJob<float>& job);
void RunSoftmax(const SoftmaxJob<double>& job);
void RunSoftmaxGradient(const SoftmaxGradientJob<float>& job);
void RunSoftmaxGradient(const SoftmaxGradientJob<double>& job);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_SOFTMAX_KERNELS_H_
