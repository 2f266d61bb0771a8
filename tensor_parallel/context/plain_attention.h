// Attention over a whole sequence by its definition, in float64: what the ways
// to share it among ranks are held against.
#ifndef TESSERA_TENSOR_PARALLEL_CONTEXT_PLAIN_ATTENTION_H_
#define TESSERA_TENSOR_PARALLEL_CONTEXT_PLAIN_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::tensor_parallel {

// A tensor [length, heads, size], by position.
struct PlainTensor {
  PlainTensor(int64_t length, int64_t heads, int64_t size)
      : length(length),
        heads(heads),
        size(size),
        values(static_cast<size_t>(length * heads * size)) {}

  double& at(int64_t position, int64_t head, int64_t d) {
    return values[static_cast<size_t>((position * heads + head) * size + d)];
  }
  double at(int64_t position, int64_t head, int64_t d) const {
    return values[static_cast<size_t>((position * heads + head) * size + d)];
  }

  int64_t length;
  int64_t heads;
  int64_t size;
  std::vector<double> values;
};

struct PlainAttention {
  PlainTensor output;
  PlainTensor query_gradient;
  PlainTensor key_gradient;
  PlainTensor value_gradient;
};

// softmax(q k^T / sqrt(size)) v of every head, and the gradients of the sum of
// the output times `gradient`.
PlainAttention Attend(const PlainTensor& query, const PlainTensor& key,
                      const PlainTensor& value, const PlainTensor& gradient,
                      bool causal);

// Turns the pairs (x[i], x[i + size/2]) at position p by p base^(-2i/size), or
// back by it: the definition of rotary positions (arXiv 2104.09864).
void Rotate(double base, bool back, PlainTensor& x);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_CONTEXT_PLAIN_ATTENTION_H_
