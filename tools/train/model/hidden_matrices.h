// HiddenMatrix: a matrix that Muon updates as a whole, and the part of it that
// each tensor-parallel rank holds.
//
//   for (const HiddenMatrix& matrix :
//        HiddenMatricesOf(parameter, config, {.tensor_ranks = 4})) ...
//
// Fused tensors are several matrices, those of the published models: queries,
// keys and values; gate and up; and the same of each expert. So the update does
// not depend on how ranks cut the tensor, nor on the fusion.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_HIDDEN_MATRICES_H_
#define TESSERA_TOOLS_TRAIN_MODEL_HIDDEN_MATRICES_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/sharding/partition.h"
#include "tools/model_files/model_config.h"

namespace tessera::train {

// True for the weights of projections of attention, MLPs and experts. Others
// are AdamW's: embeddings, head, norms, biases, routers.
bool IsHiddenMatrix(std::string_view parameter);

// Of the whole tensor.
struct MatrixPart {
  tensor_parallel::IndexRange rows = {};
  tensor_parallel::IndexRange columns = {};

  int64_t elements() const { return rows.size() * columns.size(); }
  friend bool operator==(const MatrixPart&, const MatrixPart&) = default;
};

struct HiddenMatrix {
  MatrixPart whole = {};
  // By tensor rank. They cover the matrix; several ranks may hold the same.
  std::vector<MatrixPart> parts = {};
  // The first element of this rank's part, which is contiguous, among those of
  // the parameter that it holds.
  int64_t begin = 0;
};

struct MatrixRanks {
  int64_t tensor_rank = 0;
  int64_t tensor_ranks = 1;
  // Of experts that are divided.
  int64_t expert_rank = 0;
  int64_t expert_ranks = 1;
};

// The matrices of a parameter, but for experts of other expert ranks, in the
// order of its rows: the same on every tensor rank. Empty unless
// IsHiddenMatrix. Internal if the layer has cut the tensor in another way.
absl::StatusOr<std::vector<HiddenMatrix>> HiddenMatricesOf(
    const tensor_parallel::Parameter& parameter,
    const model_files::ModelConfig& model, const MatrixRanks& ranks);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_HIDDEN_MATRICES_H_
