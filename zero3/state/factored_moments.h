// The arithmetic of factored second moments on the CPU: one moment for each row
// and each column of a matrix (op::SumSquares and the following operations of
// state_operations.h, which check the operands).
//
// Sums are in f64 and in a fixed order, which the kernels of GPUs repeat. The
// sum of a row has kLanes partial sums, of every kLanes-th element, which are
// added pairwise. The sum of a column first adds the elements of kRowsOfGroup
// rows, counted from the first row of the operands, and then these sums.
#ifndef TESSERA_ZERO3_STATE_FACTORED_MOMENTS_H_
#define TESSERA_ZERO3_STATE_FACTORED_MOMENTS_H_

#include <cstddef>
#include <cstdint>

#include "base/dtype/dtype.h"

namespace tessera {
class ThreadPool;
}

namespace tessera::zero3 {

inline constexpr int kLanes = 32;
inline constexpr int64_t kRowsOfGroup = 32;
// Of the sum of all moments of rows.
inline constexpr int kMeanLanes = 256;

// `count` consecutive elements, times `scale`, of a matrix of `width` columns;
// the first one is in column `offset`.
struct MatrixElements {
  const std::byte* values = nullptr;
  DType dtype = DType::kF32;
  int64_t count = 0;
  double scale = 1;
  int64_t offset = 0;
  int64_t width = 1;
};

// Moments are f64 for f64 elements, otherwise f32. `columns` and `pool` may be
// null.
void ScaleValues(DType dtype, double factor, std::byte* values, int64_t count);
void AddSquares(const MatrixElements& elements, double row_weight,
                std::byte* rows, double column_weight, std::byte* columns,
                ThreadPool* pool);
void DivideByMean(DType dtype, const std::byte* rows, int64_t row_count,
                  double least, std::byte* columns, int64_t column_count);
void WriteUpdate(const MatrixElements& elements, const std::byte* rows,
                 const std::byte* columns, double least, double factor,
                 std::byte* update, ThreadPool* pool);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_FACTORED_MOMENTS_H_
