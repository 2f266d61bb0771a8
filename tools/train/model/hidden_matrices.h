// The matrices that Muon and Shampoo update as a whole, and the part of each
// that every tensor-parallel rank holds.
//
//   for (const HiddenMatrix& matrix :
//        HiddenMatricesOf(parameter, config, {.tensor_ranks = 4})) ...
//
// A fused tensor consists of several matrices, as in the published models:
// queries, keys and values; gate and up; and the same for each expert. The
// update therefore depends neither on the fusion nor on how ranks partition the
// tensor.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_HIDDEN_MATRICES_H_
#define TESSERA_TOOLS_TRAIN_MODEL_HIDDEN_MATRICES_H_

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/sharding/partition.h"
#include "tools/model_files/model_config.h"

namespace tessera::train {

// True for the projection weights of attention, MLPs and experts. AdamW updates
// all other parameters: embeddings, head, norms, biases, routers.
bool IsHiddenMatrix(std::string_view parameter);

// A rectangle of the whole tensor.
struct MatrixPart {
  tensor_parallel::IndexRange rows = {};
  tensor_parallel::IndexRange columns = {};

  int64_t elements() const { return rows.size() * columns.size(); }
  friend bool operator==(const MatrixPart&, const MatrixPart&) = default;
};

struct HiddenMatrix {
  MatrixPart whole = {};
  // By tensor rank. The parts cover the matrix; several ranks may hold the same
  // part.
  std::vector<MatrixPart> parts = {};
  // The index of this rank's part, which is contiguous, in the elements of the
  // parameter that the rank holds.
  int64_t begin = 0;
};

// The model and the ranks for updates of whole matrices (Muon, Adafactor).
struct MatrixUpdateOptions {
  model_files::ModelConfig model = {};
  // Not owned.
  tensor_parallel::Ops* ops = nullptr;
  collectives::Communicator* tensor = nullptr;   // Null: one rank.
  collectives::Communicator* experts = nullptr;  // Null: experts not divided.
};

// If `status` is an error, aborts the groups other than null, so that no rank
// waits for this one. Returns `status`.
absl::Status AbortOnError(
    const absl::Status& status,
    std::initializer_list<collectives::Communicator*> groups);

struct MatrixRanks {
  int64_t tensor_rank = 0;
  int64_t tensor_ranks = 1;
  // For experts that are divided among ranks.
  int64_t expert_rank = 0;
  int64_t expert_ranks = 1;
};

// The matrices of a parameter in the order of its rows, without the experts of
// other expert ranks. The same on every tensor rank. Empty unless
// IsHiddenMatrix. Internal if the layer partitions the tensor differently.
absl::StatusOr<std::vector<HiddenMatrix>> HiddenMatricesOf(
    const tensor_parallel::Parameter& parameter,
    const model_files::ModelConfig& model, const MatrixRanks& ranks);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_HIDDEN_MATRICES_H_
