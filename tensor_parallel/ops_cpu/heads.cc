#include "tensor_parallel/ops_cpu/attention/heads.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/dtype/dtype.h"
#include "base/dtype/dtype_traits.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops_cpu/blas.h"
#include "tensor_parallel/ops_cpu/operand/rows_view.h"
#include "tensor_parallel/ops_cpu/rowwise/elementwise_kernels.h"
#include "tensor_parallel/sharding/index_range.h"

namespace tessera::tensor_parallel::cpu {
namespace {

template <typename Byte>
BasicRowsView<Byte> HeadsOf(const BasicTensorView<Byte>& x, int64_t token,
                            int64_t head) {
  const int64_t offset = token * x.strides()[0] + head * x.strides()[1];
  return BasicRowsView<Byte>(x.data() + offset * SizeInBytes(x.dtype()),
                             x.strides()[1]);
}

}  // namespace

template <typename S>
void ReadHeads(const ConstTensorView& x, IndexRange tokens, IndexRange heads,
               S* rows) {
  const int64_t d = x.shape()[2];
  for (int64_t token = tokens.begin; token < tokens.end; ++token) {
    RunElementwise({.step = ElementwiseJob::Step::kCast,
                    .x_type = x.dtype(),
                    .y_type = kDTypeOf<S>,
                    .rows = heads.size(),
                    .n = d,
                    .x = HeadsOf(x, token, heads.begin),
                    .y = RowsView(reinterpret_cast<std::byte*>(rows), d)});
    rows += heads.size() * d;
  }
}

template <typename S>
void WriteHeads(Writing writing, const S* rows, IndexRange tokens,
                IndexRange heads, const TensorView& x) {
  const int64_t d = x.shape()[2];
  for (int64_t token = tokens.begin; token < tokens.end; ++token) {
    RunElementwise(
        {.step = writing == Writing::kAdd ? ElementwiseJob::Step::kAdd
                                          : ElementwiseJob::Step::kCast,
         .x_type = x.dtype(),
         .y_type = x.dtype(),
         .rows = heads.size(),
         .n = d,
         .x = ConstRowsView(reinterpret_cast<const std::byte*>(rows), d),
         .y = HeadsOf(x, token, heads.begin)});
    rows += heads.size() * d;
  }
}

template <typename S>
Head<S>::Head(const ConstTensorView& x, int64_t head) {
  const int64_t tokens = x.shape()[0], d = x.shape()[2];
  stride_ = x.strides()[0];
  const bool fits = stride_ >= d && stride_ <= kLargestBlasSize;
  if (x.dtype() == kDTypeOf<S> && (tokens <= 1 || fits)) {
    data_ = HeadsOf(x, 0, head).template row<S>(0);
    return;
  }
  copy_ = Scratch<S>(tokens * d);
  ReadHeads(x, {0, tokens}, {head, head + 1}, copy_.get());
  data_ = copy_.get();
  stride_ = d;
}

template void ReadHeads(const ConstTensorView&, IndexRange, IndexRange, float*);
template void ReadHeads(const ConstTensorView&, IndexRange, IndexRange,
                        double*);
template void WriteHeads(Writing, const float*, IndexRange, IndexRange,
                         const TensorView&);
template void WriteHeads(Writing, const double*, IndexRange, IndexRange,
                         const TensorView&);
template class Head<float>;
template class Head<double>;

}  // namespace tessera::tensor_parallel::cpu
