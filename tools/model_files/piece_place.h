// PiecePlace: where a tensor of a file has the rows of a HuggingFacePiece.
#ifndef TESSERA_TOOLS_MODEL_FILES_PIECE_PLACE_H_
#define TESSERA_TOOLS_MODEL_FILES_PIECE_PLACE_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/status_macros.h"
#include "tools/model_files/stacked_experts.h"

namespace tessera::model_files {

// The rows of the piece begin at row `row` of the tensor, whose first
// dimensions are one. With a block above 0, only the first `block` of each
// `stride` rows are the piece's.
struct PiecePlace {
  std::string name = {};
  std::vector<int64_t> shape = {};
  int64_t row = 0;
  int64_t block = 0;
  int64_t stride = 0;
  // If given, the tensor stores the piece, a whole parameter, in this way, and
  // the numbers above are not used.
  std::optional<StackedExperts> stack = {};

  // Calls `visit` for each run of rows that are contiguous in the tensor among
  // the rows [begin, end) of the piece: their first row in the tensor, their
  // first row in the piece, and their number. Stops at an error.
  absl::Status VisitRuns(
      int64_t begin, int64_t end,
      absl::FunctionRef<absl::Status(int64_t tensor_row, int64_t piece_row,
                                     int64_t rows)>
          visit) const {
    while (begin < end) {
      const int64_t inside = block == 0 ? begin : begin % block;
      const int64_t jumps = block == 0 ? 0 : begin / block * stride;
      const int64_t rows =
          block == 0 ? end - begin : std::min(end - begin, block - inside);
      TESSERA_RETURN_IF_ERROR(visit(row + jumps + inside, begin, rows));
      begin += rows;
    }
    return absl::OkStatus();
  }
};

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_PIECE_PLACE_H_
