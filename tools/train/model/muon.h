// The Muon optimizer: updates hidden matrices by orthogonalised momentum
// (newton_schulz.h), over the ranks that hold their parts.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto muon, Muon::Create(parameters, state->layout(), data, device,
//                               {.model = model, .ops = &ops, .tensor = tp}));
//   TESSERA_ASSIGN_OR_RETURN(auto report, state->Step(muon.get()));
//
// The updates are the same on every mesh: a matrix is gathered to one owner,
// which runs the iterations. The owners are all shard ranks of all tensor
// ranks; matrices are assigned by descending cost, each to the owner with the
// least work. A round processes one matrix per owner:
//
//   step                                     message                group
//   directions of this rank's elements       all-to-all, to the     shard
//     (zero3::MatrixShards)                  owners' data ranks
//   parts of tensor ranks                    all-to-all, to owners  tensor
//   Newton-Schulz, times -0.2 sqrt(larger side)
//   the same messages back, then weights are updated
//
// The factor gives updates a root mean square of about 0.2, as AdamW has, so
// that both share a learning rate and a weight decay: J. Liu et al., "Muon is
// scalable for LLM training", arXiv 2502.16982, equation 4.
//
// If the n = d t ranks of a pipeline stage (d shard ranks, t tensor ranks) hold
// matrices of E elements in total, a rank sends 8 E (d - 1) / (d n) bytes to
// shard ranks and 8 E (t - 1) / (t n) bytes to tensor ranks per step, in f32.
// Working memory is allocated once: two to three times the largest matrix, two
// squares of its smaller side, and a tensor rank's part of it.
//
// At ZeRO stage 0 every data rank has the whole state and repeats the work, as
// do replicas of the state (hybrid sharding).
#ifndef TESSERA_TOOLS_TRAIN_MODEL_MUON_H_
#define TESSERA_TOOLS_TRAIN_MODEL_MUON_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "offload/optimizer/parameter_range.h"
#include "tensor_parallel/layers/parameter.h"
#include "tools/train/model/hidden_matrices.h"
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
  struct Matrix {
    zero3::ParameterId id;
    HiddenMatrix place;
  };
  // A range of the elements of a parameter that this tensor rank holds.
  struct Piece {
    int64_t begin = 0;
    int64_t size = 0;
  };
  // The index of each owner's matrix, or nullopt. Owners are ordered by shard
  // rank, then by tensor rank.
  using Round = std::vector<std::optional<size_t>>;
  // The number of elements that this rank sends to and receives from each rank
  // of a group.
  struct Counts {
    std::vector<int64_t> sent = {};
    std::vector<int64_t> received = {};
    bool any = false;  // A rank of the group owns a matrix.
  };

  Muon(const zero3::StateLayout& layout, collectives::Communicator* shard,
       const zero3::StateDevice& device, const MatrixUpdateOptions& options)
      : layout_(layout), shard_(shard), device_(device), options_(options) {}

  absl::Status AddMatrices(
      std::span<tensor_parallel::Parameter* const> parameters);
  absl::Status PlanRounds();
  absl::Status Allocate();

  // Null if the owner has no matrix in this round.
  const Matrix* MatrixOf(const Round& round, int64_t shard_rank,
                         int64_t tensor_rank) const;
  const MatrixPart& OwnPart(const Matrix& matrix) const;
  // The piece of this tensor rank's part that a shard rank owns.
  Piece PieceOf(const Matrix& matrix, int64_t shard_rank) const;
  // Counts in the shard group for the parts of one tensor rank's matrices.
  Counts ShardCounts(const Round& round, int64_t tensor_rank) const;
  // Counts in the tensor group for this shard rank's matrices.
  Counts TensorCounts(const Round& round) const;

  absl::Status RunRounds(zero3::MatrixShards& shards);
  absl::Status RunRound(const Round& round, zero3::MatrixShards& shards);
  // GatherParts sets `parts` to this tensor rank's parts of this shard rank's
  // matrices, by tensor owner. ScatterParts applies the updates in `parts`.
  absl::Status GatherParts(const Round& round, const offload::TypedSpan& parts,
                           zero3::MatrixShards& shards);
  absl::Status ScatterParts(const Round& round, const offload::TypedSpan& parts,
                            zero3::MatrixShards& shards);
  // Move data between `parts_` and this rank's matrix, if it owns one.
  absl::Status GatherMatrix(const Round& round);
  absl::Status ScatterMatrix(const Round& round, const TensorView& update);
  // Copies between the packed parts of tensor ranks and a matrix.
  absl::Status CopyParts(const Matrix& matrix, const offload::TypedSpan& packed,
                         const TensorView& whole, bool to_whole);
  absl::StatusOr<TensorView> Update(const Matrix& matrix);
  absl::Status Exchange(collectives::Communicator& group,
                        const offload::TypedSpan& from,
                        const std::vector<int64_t>& sent,
                        const offload::TypedSpan& to,
                        const std::vector<int64_t>& received);
  absl::StatusOr<TensorView> ViewOf(const offload::TypedSpan& memory,
                                    std::initializer_list<int64_t> shape) const;

  const zero3::StateLayout layout_;
  collectives::Communicator* const shard_;
  const zero3::StateDevice device_;
  const MatrixUpdateOptions options_;
  int64_t shard_ranks_ = 1, shard_rank_ = 0;
  int64_t tensor_ranks_ = 1, tensor_rank_ = 0;
  DType dtype_ = DType::kF32;  // The type of directions and updates.
  std::vector<Matrix> matrices_;
  std::vector<Round> rounds_;
  zero3::AccountedMemory memory_;
  // Ranges of memory_. With one shard rank there is no pieces_, with one tensor
  // rank no parts_: the next range takes its role.
  offload::TypedSpan pieces_, parts_, matrix_, other_, scratch_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_MUON_H_
