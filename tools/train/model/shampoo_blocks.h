// The blocks of a matrix that Shampoo preconditions separately, and the tensors
// in which it keeps their statistics: one for each matrix, held as a whole by
// the owner of the matrix.
//
//   for (const MatrixBlock& block : BlocksOf(rows, columns, 1024)) ...
//
// The statistics of a block of m rows and n columns are, in this order, the
// averages L [m, m] of G G^T and R [n, n] of G^T G, and the inverse roots of L
// and of R, of the same shapes. Those of a matrix are those of its blocks. A
// matrix of E elements in square blocks has 4 E statistics.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_SHAMPOO_BLOCKS_H_
#define TESSERA_TOOLS_TRAIN_MODEL_SHAMPOO_BLOCKS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor_parallel/sharding/partition.h"

namespace tessera::train {

struct MatrixBlock {
  // In the matrix.
  tensor_parallel::IndexRange rows = {};
  tensor_parallel::IndexRange columns = {};
  // The index of L in the statistics of the matrix.
  int64_t left = 0;

  int64_t right() const { return left + rows.size() * rows.size(); }
  int64_t left_root() const {
    return right() + columns.size() * columns.size();
  }
  int64_t right_root() const { return left_root() + rows.size() * rows.size(); }
  int64_t end() const { return right_root() + columns.size() * columns.size(); }
};

// The blocks of at most `most` rows and columns, by rows. Precondition: `most`
// is at least 1.
std::vector<MatrixBlock> BlocksOf(int64_t rows, int64_t columns, int64_t most);

// The number of statistics of a matrix.
int64_t StatisticsElements(int64_t rows, int64_t columns, int64_t most);

// The name of the statistics of a matrix whose first row in the weight is
// `first`.
std::string StatisticsName(std::string_view weight, int64_t first);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_SHAMPOO_BLOCKS_H_
