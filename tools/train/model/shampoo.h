// The Shampoo optimizer: preconditions hidden matrices by inverse roots of
// averages of their gradients' products, over the ranks that hold their parts.
//
//   TESSERA_ASSIGN_OR_RETURN(const auto matrices,
//                            ShampooMatrices(parameters, 1024, ranks));
//   TESSERA_ASSIGN_OR_RETURN(
//       auto shampoo, Shampoo::Create(matrices, state->layout(), data, device,
//                                     *statistics, options, ranks));
//   TESSERA_ASSIGN_OR_RETURN(auto report, state->Step(shampoo.get()));
//
// For each block of a matrix (shampoo_blocks.h), with gradient G, M the first
// moment and U the update of AdamW, both with bias correction:
//
//   L <- beta2 L + (1 - beta2) G G^T, R <- beta2 R + (1 - beta2) G^T G
//   every `every` steps, from the first on: the roots of L and R to the power
//     -1/4 (inverse_root.h), with `epsilon` relative to the norms
//   P <- root(L) M root(R)
//   W <- W (1 - learning_rate weight_decay)
//        - learning_rate ||U|| / ||P|| P
//
// Grafting takes the size of the step from AdamW, so that both share a learning
// rate; constant factors of L and R, such as their bias corrections, cancel.
// Sources: V. Gupta et al., arXiv 1802.09568; R. Anil et al., arXiv 2002.09018
// (grafting, roots at intervals); H.-J. Shi et al., arXiv 2309.06497 (blocks,
// filtered gradients, AdamW grafting).
//
// The updates are the same on every mesh: U, G and M of a matrix are gathered
// to one owner (matrix_exchange.h), so that a step has three gathers and one
// scatter. The statistics of the matrix are a frozen parameter of a state of
// their own, whose layout, kRoundRobin, assigns them to the owner: they are
// never sent, every rank keeps those of its own matrices at all ZeRO stages
// from 1 on, and they are offloaded, saved and restored on any mesh like
// weights. Matrix i of ShampooMatrices belongs to shard rank i mod d and tensor
// rank (i / d) mod t.
//
// The host waits for the device in steps with new roots, to check that they are
// finite.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_SHAMPOO_H_
#define TESSERA_TOOLS_TRAIN_MODEL_SHAMPOO_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/staging.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "offload/optimizer/parameter_range.h"
#include "tensor_parallel/layers/parameter.h"
#include "tools/train/model/hidden_matrices.h"
#include "tools/train/model/matrix_exchange.h"
#include "tools/train/model/shampoo_blocks.h"
#include "zero3/layout/state_layout.h"
#include "zero3/state/optimizer_shard.h"
#include "zero3/state/sharded_state.h"
#include "zero3/state/state_device.h"
#include "zero3/state/state_options.h"

namespace tessera::train {

// The hidden matrices of `parameters`, ordered by id, in descending order of
// their statistics.
absl::StatusOr<std::vector<StateMatrix>> ShampooMatrices(
    std::span<tensor_parallel::Parameter* const> parameters, int64_t block,
    const MatrixUpdateOptions& ranks);

// The tensor rank that owns matrix i of ShampooMatrices.
int64_t TensorOwnerOf(size_t i, int64_t shard_ranks,
                      const MatrixUpdateOptions& ranks);

class Shampoo final : public zero3::MatrixUpdates {
 public:
  // `matrices` are those of ShampooMatrices, and `statistics` has a frozen
  // parameter for each, in that order, empty on other tensor ranks than the
  // owner's. `layout` is the partition of the weights' state over `shard`
  // (null: every rank has the whole state). Working memory counts as buffers of
  // `device`. All arguments must outlive this, except for `matrices` and
  // `options`. ResourceExhausted if the device has too little memory.
  static absl::StatusOr<std::unique_ptr<Shampoo>> Create(
      std::vector<StateMatrix> matrices, const zero3::StateLayout& layout,
      collectives::Communicator* shard, const zero3::StateDevice& device,
      zero3::ShardedState& statistics,
      const zero3::ShardedStateOptions& options,
      const MatrixUpdateOptions& ranks);

  // An error aborts the groups, so that no rank waits for this one. Internal,
  // with the parameter, if roots are not finite; weights were updated then.
  absl::Status Run(zero3::MatrixShards& shards) override;

 private:
  Shampoo(std::unique_ptr<MatrixExchange> exchange,
          const zero3::StateDevice& device, zero3::ShardedState& statistics,
          const zero3::ShardedStateOptions& options,
          const MatrixUpdateOptions& ranks)
      : exchange_(std::move(exchange)),
        device_(device),
        statistics_(statistics),
        numbers_(options.shampoo),
        beta2_(options.adamw.beta2),
        ops_(*ranks.ops),
        staging_(*device.queue) {}

  // The work on a matrix that this rank owns.
  struct Work {
    std::vector<MatrixBlock> blocks;
    offload::TypedSpan statistics;
    TensorView norms;    // [blocks], those of U.
    TensorView scratch;  // For one block.
  };

  absl::Status RunRounds(zero3::MatrixShards& shards);
  absl::Status RunRound(size_t round, bool renews, zero3::MatrixShards& shards);
  // nullopt if this rank owns no matrix in the round.
  absl::StatusOr<std::optional<Work>> Begin(size_t round);
  absl::Status MeasureUpdate(const Work& work, const TensorView& update);
  absl::Status AddGradient(const Work& work, const TensorView& gradient);
  absl::Status RenewRoots(const Work& work, size_t round);
  absl::Status Precondition(const Work& work, const TensorView& moment,
                            const TensorView& update);
  absl::Status PreconditionBlock(const Work& work, size_t block,
                                 const TensorView& moment,
                                 const TensorView& update);
  absl::Status CheckRoots();

  // The square matrix of `size` rows at `begin` of the statistics.
  absl::StatusOr<TensorView> SquareOf(const Work& work, int64_t begin,
                                      int64_t size) const;

  const std::unique_ptr<MatrixExchange> exchange_;
  const zero3::StateDevice device_;
  zero3::ShardedState& statistics_;
  const zero3::ShampooNumbers numbers_;
  const double beta2_;
  tensor_parallel::Ops& ops_;
  StagingPool staging_;
  // GradientStatistics of the statistics of this rank's matrices, by round.
  zero3::AccountedMemory measured_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_SHAMPOO_H_
