#include "base/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor_parallel/ops_cpu/row_table_kernels.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"
#include "tensor_parallel/ops_cpu/block-inl.h"
#include "tensor_parallel/ops_cpu/columns-inl.h"
#include "tensor_parallel/ops_cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::tensor_parallel::cpu {
namespace HWY_NAMESPACE {

template <typename T>
struct ListedRow {
  HWY_INLINE Block<StatisticOf<T>> operator()(int64_t i, int64_t at,
                                              int64_t left) const {
    return Load(job.gradient.row<T>(job.rows[i]) + at, left);
  }
  const AddRowsJob& job;
};

template <typename T, typename Target>
void RunAddRowsAs(const AddRowsJob& job) {
  AddColumns(ListedRow<T>{job}, {0, static_cast<int64_t>(job.rows.size())},
             {0, job.n}, job.target.row<Target>(0));
}

void RunAddRowsHere(const AddRowsJob& job) {
  if (job.dtype == DType::kF64) return RunAddRowsAs<double, double>(job);
  if (job.dtype == DType::kF32) return RunAddRowsAs<float, float>(job);
  const bool is_wide = job.target_type == DType::kF32;
  if (job.dtype == DType::kF16) {
    return is_wide ? RunAddRowsAs<F16, float>(job)
                   : RunAddRowsAs<F16, F16>(job);
  }
  return is_wide ? RunAddRowsAs<BF16, float>(job)
                 : RunAddRowsAs<BF16, BF16>(job);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::tensor_parallel::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::tensor_parallel::cpu {

HWY_EXPORT(RunAddRowsHere);

void RunAddRows(const AddRowsJob& job) {
  HWY_DYNAMIC_DISPATCH(RunAddRowsHere)(job);
}

}  // namespace tessera::tensor_parallel::cpu
#endif  // HWY_ONCE
