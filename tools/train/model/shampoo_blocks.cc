#include "tools/train/model/shampoo_blocks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tools/train/model/moment_tensors.h"

namespace tessera::train {

std::vector<MatrixBlock> BlocksOf(int64_t rows, int64_t columns, int64_t most) {
  std::vector<MatrixBlock> blocks;
  int64_t left = 0;
  for (int64_t row = 0; row < rows; row += most) {
    for (int64_t column = 0; column < columns; column += most) {
      blocks.push_back({.rows = {row, std::min(rows, row + most)},
                        .columns = {column, std::min(columns, column + most)},
                        .left = left});
      left = blocks.back().end();
    }
  }
  return blocks;
}

int64_t StatisticsElements(int64_t rows, int64_t columns, int64_t most) {
  const std::vector<MatrixBlock> blocks = BlocksOf(rows, columns, most);
  return blocks.empty() ? 0 : blocks.back().end();
}

std::string StatisticsName(std::string_view weight, int64_t first) {
  return absl::StrCat(weight, ".", first, kStatisticsSuffix);
}

}  // namespace tessera::train
