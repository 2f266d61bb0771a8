// Muon: the updates of hidden matrices by momentum that is orthogonalised
// (newton_schulz.h), over the ranks that hold their parts.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto muon, Muon::Create(parameters, state->layout(), state->rank(),
//                               {.shard = data, .tensor = tp, ...}));
//   TESSERA_ASSIGN_OR_RETURN(auto report, state->Step(muon.get()));
//
// The updates are those of one rank for any mesh: a matrix is gathered to one
// owner and iterated on there. Owners are all shard ranks of all tensor ranks,
// and the heaviest matrix goes first to the owner with the least work. A round
// takes one matrix of each owner:
//
//   step                                     message                group
//   directions of this rank's elements       all-to-all, to the     shard
//     (zero3::MatrixShards)                  owners' data ranks
//   parts of tensor ranks                    all-to-all, to owners  tensor
//   Newton-Schulz, times -0.2 sqrt(larger side)
//   the same messages back, then weights are updated
//
// The factor gives updates the root mean square of AdamW's, about 0.2, so that
// both share a learning rate and a weight decay: J. Liu et al., "Muon is
// scalable for LLM training", arXiv 2502.16982, equation 4.
//
// A rank sends in a step, for E elements of matrices that the ranks of its
// pipeline stage hold together, on n = d t ranks (d shard ranks, t tensor
// ranks), 8 E (d - 1) / (d n) bytes to shard ranks and 8 E (t - 1) / (t n) to
// tensor ranks, in f32. Working memory, which is kept: two to three of the
// largest matrix, two squares of its smaller side, and its part of a tensor
// rank.
//
// At ZeRO stage 0 every data rank has the whole state and repeats the work.
// Replicas of the state (hybrid sharding) repeat it too.
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
#include "tensor_parallel/ops/ops.h"
#include "tools/model_files/model_config.h"
#include "tools/train/model/hidden_matrices.h"
#include "zero3/layout/state_layout.h"
#include "zero3/state/optimizer_shard.h"
#include "zero3/state/state_device.h"

namespace tessera::train {

struct MuonOptions {
  model_files::ModelConfig model = {};
  // Not owned.
  tensor_parallel::Ops* ops = nullptr;
  collectives::Communicator* tensor = nullptr;   // Null: one rank.
  collectives::Communicator* experts = nullptr;  // Null: they are not divided.
};

class Muon final : public zero3::MatrixUpdates {
 public:
  // `parameters`, in the order of ids, are those of `layout`, the partition of
  // their state over `shard` (null: every rank has everything). Working memory
  // counts as buffers of `device`. Everything outlives this.
  // ResourceExhausted if it has too little room.
  static absl::StatusOr<std::unique_ptr<Muon>> Create(
      std::span<tensor_parallel::Parameter* const> parameters,
      const zero3::StateLayout& layout, collectives::Communicator* shard,
      const zero3::StateDevice& device, const MuonOptions& options);

  // An error breaks the groups, so that no rank waits for this one.
  absl::Status Run(zero3::MatrixShards& shards) override;

 private:
  struct Matrix {
    zero3::ParameterId id;
    HiddenMatrix place;
  };
  // Elements of a parameter, of those that this rank's tensor rank holds.
  struct Piece {
    int64_t begin = 0;
    int64_t size = 0;
  };
  // By owner, all tensor ranks of a shard rank after each other: the index of a
  // matrix, or none.
  using Round = std::vector<std::optional<size_t>>;
  // Elements that this rank sends to each rank of a group, and receives.
  struct Counts {
    std::vector<int64_t> sent = {};
    std::vector<int64_t> received = {};
    bool any = false;  // A rank of the group owns a matrix.
  };

  Muon(const zero3::StateLayout& layout, collectives::Communicator* shard,
       const zero3::StateDevice& device, const MuonOptions& options)
      : layout_(layout), shard_(shard), device_(device), options_(options) {}

  absl::Status AddMatrices(
      std::span<tensor_parallel::Parameter* const> parameters);
  absl::Status PlanRounds();
  absl::Status Allocate();

  // Null: the owner has none in this round.
  const Matrix* MatrixOf(const Round& round, int64_t shard_rank,
                         int64_t tensor_rank) const;
  const MatrixPart& OwnPart(const Matrix& matrix) const;
  // Of this tensor rank's part, what a shard rank owns.
  Piece PieceOf(const Matrix& matrix, int64_t shard_rank) const;
  // Of the parts of the matrices of one tensor rank, in the shard group.
  Counts ShardCounts(const Round& round, int64_t tensor_rank) const;
  // Of the matrices of this shard rank, in the tensor group.
  Counts TensorCounts(const Round& round) const;

  absl::Status RunRounds(zero3::MatrixShards& shards);
  absl::Status RunRound(const Round& round, zero3::MatrixShards& shards);
  // Sets `parts` to this tensor rank's parts of the matrices of this shard
  // rank, by tensor owner; and takes the updates from there.
  absl::Status GatherParts(const Round& round, const offload::TypedSpan& parts,
                           zero3::MatrixShards& shards);
  absl::Status ScatterParts(const Round& round, const offload::TypedSpan& parts,
                            zero3::MatrixShards& shards);
  // Between `parts_` and the own matrix, if there is one.
  absl::Status GatherMatrix(const Round& round);
  absl::Status ScatterMatrix(const Round& round, const TensorView& update);
  // Copies between the parts of tensor ranks, packed, and a matrix.
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
  const MuonOptions options_;
  int64_t shard_ranks_ = 1, shard_rank_ = 0;
  int64_t tensor_ranks_ = 1, tensor_rank_ = 0;
  DType dtype_ = DType::kF32;  // Of directions and updates.
  std::vector<Matrix> matrices_;
  std::vector<Round> rounds_;
  zero3::AccountedMemory memory_;
  // Parts of it. With one shard rank there are no pieces, with one tensor rank
  // no parts: they are in the next one.
  offload::TypedSpan pieces_, parts_, matrix_, other_, scratch_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_MUON_H_
