// The Muon optimizer: updates hidden matrices by orthogonalised momentum
// (newton_schulz.h), over the ranks that hold their parts.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto muon, Muon::Create(parameters, state->layout(), data, device,
//                               {.model = model, .ops = &ops, .tensor = tp}));
//   TESSERA_ASSIGN_OR_RETURN(auto report, state->Step(muon.get()));
//
// The updates are the same on every mesh: a matrix is gathered to one owner
// (matrix_exchange.h), which runs the iterations; a step has one gather and one
// scatter. Matrices are assigned by descending cost, each to the owner with the
// least work. An update is -0.2 sqrt(larger side) times the result.
//
// The factor gives updates a root mean square of about 0.2, as AdamW has, so
// that both share a learning rate and a weight decay: J. Liu et al., "Muon is
// scalable for LLM training", arXiv 2502.16982, equation 4.
//
// Besides the memory of the exchange, an owner needs two squares of the smaller
// side of its largest matrix.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_MUON_H_
#define TESSERA_TOOLS_TRAIN_MODEL_MUON_H_

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/ops/ops.h"
#include "tools/train/model/hidden_matrices.h"
#include "tools/train/model/matrix_exchange.h"
#include "zero3/layout/state_layout.h"
#include "zero3/state/optimizer_shard.h"
#include "zero3/state/state_device.h"

namespace tessera::train {

class Muon final : public zero3::MatrixUpdates {
 public:
  // `parameters`, ordered by id, are those of `layout`, the partition of their
  // state over `shard` (null: every rank has the whole state). Working memory
  // counts as buffers of `device`. All arguments must outlive this.
  // ResourceExhausted if the device has too little memory.
  static absl::StatusOr<std::unique_ptr<Muon>> Create(
      std::span<tensor_parallel::Parameter* const> parameters,
      const zero3::StateLayout& layout, collectives::Communicator* shard,
      const zero3::StateDevice& device, const MatrixUpdateOptions& options);

  // An error aborts the groups, so that no rank waits for this one.
  absl::Status Run(zero3::MatrixShards& shards) override;

 private:
  Muon(tensor_parallel::Ops& ops, std::unique_ptr<MatrixExchange> exchange)
      : ops_(ops), exchange_(std::move(exchange)) {}

  absl::Status RunRound(size_t round, zero3::MatrixShards& shards);
  absl::StatusOr<TensorView> Update(size_t round, const TensorView& direction);

  tensor_parallel::Ops& ops_;
  const std::unique_ptr<MatrixExchange> exchange_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_MUON_H_
