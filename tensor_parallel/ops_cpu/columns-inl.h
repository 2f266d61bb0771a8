// AddColumns: adds the sums of columns, computed in the type of statistics, to
// a row of any type.
//
// Rows are added one after the other to the target's values, so that any
// division of the rows into calls gives the same bits, except that a bf16
// target is rounded after each call. Compiled once for every instruction set.
#if defined(TESSERA_TENSOR_PARALLEL_OPS_CPU_COLUMNS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_TENSOR_PARALLEL_OPS_CPU_COLUMNS_INL_H_
#undef TESSERA_TENSOR_PARALLEL_OPS_CPU_COLUMNS_INL_H_
#else
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_COLUMNS_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "tensor_parallel/ops_cpu/block-inl.h"
#include "tensor_parallel/sharding/partition.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::tensor_parallel::cpu {
namespace HWY_NAMESPACE {

// target[j] += the sum over i in `rows` of term(i, j), for j in `columns`.
// term(i, at, count) is the block of columns from `at`, of which `count` are
// valid. The sums of a stripe of columns stay in the first-level cache.
template <typename Target, class Term>
HWY_INLINE void AddColumns(const Term& term, IndexRange rows,
                           IndexRange columns, Target* target) {
  using S = StatisticOf<Target>;
  constexpr int64_t kStripe = 8192 / sizeof(S);
  alignas(64) S sums[kStripe];
  for (int64_t begin = columns.begin; begin < columns.end; begin += kStripe) {
    const int64_t size = HWY_MIN(kStripe, columns.end - begin);
    for (int64_t j = 0; j < size; j += kBlock<S>) {
      StoreAll(Load(target + begin + j, size - j), sums + j);
    }
    int64_t i = rows.begin;
    for (; i + 4 <= rows.end; i += 4) {
      ForEachBlock<S>(size, [&](int64_t j, auto left) HWY_ATTR {
        Block<S> sum = LoadAll(sums + j) + term(i, begin + j, left);
        sum = sum + term(i + 1, begin + j, left);
        sum = sum + term(i + 2, begin + j, left);
        StoreAll(sum + term(i + 3, begin + j, left), sums + j);
      });
    }
    for (; i < rows.end; ++i) {
      ForEachBlock<S>(size, [&](int64_t j, auto left) HWY_ATTR {
        StoreAll(LoadAll(sums + j) + term(i, begin + j, left), sums + j);
      });
    }
    for (int64_t j = 0; j < size; j += kBlock<S>) {
      Store(LoadAll(sums + j), target + begin + j, size - j);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::tensor_parallel::cpu
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_COLUMNS_INL_H_
