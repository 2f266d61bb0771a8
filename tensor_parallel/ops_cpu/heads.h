// Heads of [tokens, heads, d] tensors as matrices of statistics.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_HEADS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_HEADS_H_

#include <cstdint>
#include <memory>

#include "base/tensor/tensor_view.h"
#include "tensor_parallel/sharding/index_range.h"

namespace tessera::tensor_parallel::cpu {

// Uninitialised values; there may be none.
template <typename S>
std::unique_ptr<S[]> Scratch(int64_t size) {
  return std::make_unique_for_overwrite<S[]>(static_cast<size_t>(size));
}

// Copies to `rows`: for each token its heads, d values each. S is the type of
// x's statistics, here and below.
template <typename S>
void ReadHeads(const ConstTensorView& x, IndexRange tokens, IndexRange heads,
               S* rows);

// The other way, for statistics: x = rows, or x += rows.
enum class Writing { kSet, kAdd };
template <typename S>
void WriteHeads(Writing writing, const S* rows, IndexRange tokens,
                IndexRange heads, const TensorView& x);

// All tokens of one head, as a matrix: where it lies if it is of type S and
// BLAS takes its stride, else a copy. (Copies without gaps were not faster,
// though heads lie a power of two apart.)
template <typename S>
class Head {
 public:
  Head(const ConstTensorView& x, int64_t head);

  const S* row(int64_t token) const { return data_ + token * stride_; }
  int64_t stride() const { return stride_; }

 private:
  std::unique_ptr<S[]> copy_;
  const S* data_;
  int64_t stride_;
};

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_HEADS_H_
