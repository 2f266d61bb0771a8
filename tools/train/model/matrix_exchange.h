// MatrixExchange: gathers hidden matrices, of which ranks hold parts, to owners
// that compute their updates, and scatters the updates.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto exchange, MatrixExchange::Create(
//                          std::move(matrices), owners, layout, shard, device,
//                          ranks, {.name = "Muon", .scratch = ScratchOf}));
//   for (size_t round = 0; round < exchange->rounds(); ++round) {
//     TESSERA_ASSIGN_OR_RETURN(const TensorView matrix,
//                              exchange->Gather(round, write));
//     ...  // If OwnIn(round) is not null: computes `update` of that matrix.
//     TESSERA_RETURN_IF_ERROR(exchange->Scatter(round, update, apply));
//   }
//
// The owners are all shard ranks of all tensor ranks. A round processes at most
// one matrix of each owner:
//
//   step                                    message                group
//   elements of the shards of this rank     all-to-all, to the     shard
//                                           owners' data ranks
//   parts of tensor ranks                   all-to-all, to owners  tensor
//   the owner computes an update
//   the same messages back
//
// If the n = d t ranks of a pipeline stage (d shard ranks, t tensor ranks) hold
// matrices of E elements in total, a rank sends 4 E (d - 1) / (d n) bytes to
// shard ranks and 4 E (t - 1) / (t n) bytes to tensor ranks in one gather, and
// in one scatter, of all rounds, in f32. Working memory is allocated once: two
// to three times the largest matrix, a tensor rank's part of it, and the
// scratch memory of updates.
//
// At ZeRO stage 0 every data rank has the whole state and is the only shard
// rank; replicas of the state (hybrid sharding) also repeat the work.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_MATRIX_EXCHANGE_H_
#define TESSERA_TOOLS_TRAIN_MODEL_MATRIX_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "offload/optimizer/parameter_range.h"
#include "tensor_parallel/layers/parameter.h"
#include "tools/train/model/hidden_matrices.h"
#include "zero3/layout/state_layout.h"
#include "zero3/state/state_device.h"

namespace tessera::train {

// A matrix of a parameter of a state.
struct StateMatrix {
  zero3::ParameterId id;
  HiddenMatrix place;
  DType dtype = DType::kF32;  // Of updates.
};

// The matrices, other than empty ones, of `parameters`, ordered by id. The same
// on every tensor rank.
absl::StatusOr<std::vector<StateMatrix>> MatricesIn(
    std::span<tensor_parallel::Parameter* const> parameters,
    const MatrixUpdateOptions& options);

// A measure of the operations of products with a matrix.
int64_t WorkOf(const StateMatrix& matrix);

class MatrixExchange {
 public:
  // Writes, or applies, elements [begin, begin + values.size()) of a parameter,
  // all of which this rank owns.
  using Elements = absl::FunctionRef<absl::Status(
      zero3::ParameterId id, int64_t begin, const offload::TypedSpan& values)>;

  struct Options {
    std::string name = "";  // For errors.
    // The number of scratch elements for an update of a matrix.
    absl::FunctionRef<int64_t(const MatrixPart& whole)> scratch;
  };

  // `owners`: of each matrix, s * tensor ranks + t for shard rank s and tensor
  // rank t. `layout` is the partition of the parameters' state over `shard`
  // (null: every rank has the whole state). Working memory counts as buffers of
  // `device`. `shard` and the objects that `device` and `ranks` refer to must
  // outlive this. ResourceExhausted if the device has too little memory.
  static absl::StatusOr<std::unique_ptr<MatrixExchange>> Create(
      std::vector<StateMatrix> matrices, std::span<const int64_t> owners,
      const zero3::StateLayout& layout, collectives::Communicator* shard,
      const zero3::StateDevice& device, const MatrixUpdateOptions& ranks,
      const Options& options);

  std::span<const StateMatrix> matrices() const { return matrices_; }
  size_t rounds() const { return rounds_.size(); }
  // The index of the matrix that this rank owns in a round, if any.
  std::optional<size_t> OwnIn(size_t round) const {
    return rounds_[round][static_cast<size_t>(own_)];
  }

  // Gathers what `write` writes to this rank's matrix, [0, 0] without one. The
  // memory of other() is overwritten.
  absl::StatusOr<TensorView> Gather(size_t round, Elements write);
  // Scatters `update` of this rank's matrix, if it owns one: contiguous, in the
  // memory of the gathered matrix or of other(). The memory of the other one is
  // overwritten.
  absl::Status Scatter(size_t round, const TensorView& update, Elements apply);

  // Memory of the same size as the round's matrix.
  absl::StatusOr<TensorView> OtherOf(size_t round) const;
  absl::StatusOr<TensorView> Scratch() const;

  // If `status` is an error, aborts the groups, so that no rank waits for this
  // one. Returns `status`.
  absl::Status AbortOnError(const absl::Status& status) const;

 private:
  // A range of the elements of a parameter that this tensor rank holds.
  struct Piece {
    int64_t begin = 0;
    int64_t size = 0;
  };
  // The index of each owner's matrix, or nullopt.
  using Round = std::vector<std::optional<size_t>>;
  // The number of elements that this rank sends to and receives from each rank
  // of a group.
  struct Counts {
    std::vector<int64_t> sent = {};
    std::vector<int64_t> received = {};
    bool any = false;  // A rank of the group owns a matrix.
  };

  MatrixExchange(std::vector<StateMatrix> matrices,
                 const zero3::StateLayout& layout,
                 collectives::Communicator* shard,
                 const zero3::StateDevice& device,
                 const MatrixUpdateOptions& ranks);

  void PlanRounds(std::span<const int64_t> owners);
  absl::Status Allocate(const Options& options);

  // Null if the owner has no matrix in this round.
  const StateMatrix* MatrixOf(const Round& round, int64_t shard_rank,
                              int64_t tensor_rank) const;
  const MatrixPart& OwnPart(const StateMatrix& matrix) const;
  // The piece of this tensor rank's part that a shard rank owns.
  Piece PieceOf(const StateMatrix& matrix, int64_t shard_rank) const;
  // Counts in the shard group for the parts of one tensor rank's matrices.
  Counts ShardCounts(const Round& round, int64_t tensor_rank) const;
  // Counts in the tensor group for this shard rank's matrices.
  Counts TensorCounts(const Round& round) const;

  // Calls `work` on this rank's pieces of the matrices that the shard ranks of
  // a tensor rank own, packed in `pieces`.
  absl::Status ForPieces(const Round& round, int64_t tensor_rank,
                         const offload::TypedSpan& pieces, Elements work) const;
  // GatherParts sets `parts` to this tensor rank's parts of this shard rank's
  // matrices, by tensor owner. ScatterParts applies the updates in `parts`.
  absl::Status GatherParts(const Round& round, const offload::TypedSpan& parts,
                           Elements write);
  absl::Status ScatterParts(const Round& round, const offload::TypedSpan& parts,
                            Elements apply);
  // Move data between `parts_` and this rank's matrix, if it owns one.
  absl::Status GatherMatrix(const Round& round);
  absl::Status ScatterMatrix(const Round& round, const TensorView& update);
  // Copies between the packed parts of tensor ranks and a matrix.
  absl::Status CopyParts(const StateMatrix& matrix,
                         const offload::TypedSpan& packed,
                         const TensorView& whole, bool to_whole);
  absl::Status Exchange(collectives::Communicator& group,
                        const offload::TypedSpan& from,
                        const std::vector<int64_t>& sent,
                        const offload::TypedSpan& to,
                        const std::vector<int64_t>& received);
  absl::StatusOr<TensorView> ViewOf(const offload::TypedSpan& memory,
                                    std::initializer_list<int64_t> shape) const;
  // The round's matrix in memory for it; [0, 0] without one.
  absl::StatusOr<TensorView> OwnView(const Round& round,
                                     const offload::TypedSpan& memory) const;

  const std::vector<StateMatrix> matrices_;
  const zero3::StateLayout layout_;
  collectives::Communicator* const shard_;
  const zero3::StateDevice device_;
  const MatrixUpdateOptions ranks_;
  const DType dtype_;
  int64_t shard_ranks_ = 1, shard_rank_ = 0;
  int64_t tensor_ranks_ = 1, tensor_rank_ = 0;
  int64_t own_ = 0;  // This rank's number as an owner.
  std::vector<Round> rounds_;
  zero3::AccountedMemory memory_;
  // Ranges of memory_. With one shard rank there is no pieces_, with one tensor
  // rank no parts_: the next range takes its role.
  offload::TypedSpan pieces_, parts_, matrix_, other_, scratch_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_MATRIX_EXCHANGE_H_
