// StageShapes: the sizes of a stage's tensors on one rank, as LlamaStage and
// the layers of tensor_parallel make them.
//
//   TESSERA_ASSIGN_OR_RETURN(const StageShapes shapes,
//                            StageShapes::Of(options, place, span));
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_STAGE_SHAPES_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_STAGE_SHAPES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "tensor_parallel/blocks/recompute.h"
#include "tools/train/loop/run_options.h"
#include "tools/train/predict/rank_place.h"

namespace tessera::train {

struct StageShapes {
  static absl::StatusOr<StageShapes> Of(const RunOptions& options,
                                        const RankPlace& place,
                                        const StageSpan& span);

  int64_t layers = 0;
  bool is_first = false;
  bool is_last = false;
  bool tied_here = false;  // The head has the embedding's table.
  bool sequence_parallel = false;
  tensor_parallel::Recompute recompute = tensor_parallel::Recompute::kNone;
  DType dtype = DType::kF32;
  DType statistics = DType::kF32;

  // Of a micro-batch: of the rank's positions; and what it has of them between
  // the sharded layers.
  int64_t sequences = 0;
  int64_t tokens = 0;
  int64_t rows = 0;
  // Positions of each context rank, in the order of the group.
  std::vector<int64_t> positions = {};
  int64_t context_rank = 0;

  int64_t hidden = 0;
  // Of this rank.
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t qkv = 0;           // Rows of the fused projection.
  int64_t query = 0;         // Columns of the output projection.
  int64_t gate_up = 0;       // Rows of the fused gate and up.
  int64_t intermediate = 0;  // Columns of down.
  int64_t vocabulary = 0;
  // Key and value rows that are summed over the ranks that share them; 0: none.
  int64_t shared_kv = 0;

  // Bytes.
  int64_t Values(int64_t elements) const {
    return elements * SizeInBytes(dtype);
  }
  int64_t Statistics(int64_t elements) const {
    return elements * SizeInBytes(statistics);
  }
  // Of a tensor between layers, and of one of all the rank's positions.
  int64_t row_bytes() const { return Values(rows * hidden); }
  int64_t token_bytes() const { return Values(tokens * hidden); }
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_STAGE_SHAPES_H_
