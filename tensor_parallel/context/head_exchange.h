// HeadExchange: the all-to-all that turns tensors of a rank's positions and all
// heads into tensors of all positions and the rank's heads, and back.
//
//   HeadExchange exchange(group, layout, heads);
//   // q [4 positions, 8 heads, 64] on each of 4 ranks -> [16, 2, 64]
//   exchange.ToHeads({{{HeadKind::kQuery, q, {q_of_run_0}}}});
//   exchange.ToPositions({{{HeadKind::kQuery, {output_of_run_0}, output}}});
//
// By position a tensor is [positions of the rank, heads, ...]; by head it is
// one contiguous tensor [length, heads of the run, ...] for each run of the
// rank's heads, in the order of the sequence. All tensors of a call travel in
// one all-to-all of bytes. A message to a rank is one piece for each of its
// runs and each tensor, each padded to a multiple of 8 bytes.
//
// A collective. Errors are the communicator's. Shapes are the caller's to
// check; a copy names those that differ. Internal to this folder.
#ifndef TESSERA_TENSOR_PARALLEL_CONTEXT_HEAD_EXCHANGE_H_
#define TESSERA_TENSOR_PARALLEL_CONTEXT_HEAD_EXCHANGE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/context/head_partition.h"
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/layers/reusable_tensor.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/sharding/index_range.h"

namespace tessera::tensor_parallel {

enum class HeadKind { kQuery, kKeyValue };

class HeadExchange {
 public:
  struct ToHeadsField {
    HeadKind kind = HeadKind::kQuery;
    ConstTensorView by_position;
    std::vector<TensorView> by_head;  // For each run of this rank.
  };
  struct ToPositionsField {
    HeadKind kind = HeadKind::kQuery;
    std::vector<ConstTensorView> by_head;
    TensorView by_position;
    // Of keys and values that several ranks have: what comes is added up, in
    // the order of ranks, in the type of `by_position`, which is that of
    // `by_head`.
    bool sum = false;
  };

  // The three are of the same ranks.
  HeadExchange(const TensorGroup& group, const SequenceLayout& layout,
               const HeadPartition& heads);

  absl::Status ToHeads(std::span<const ToHeadsField> fields);
  absl::Status ToPositions(std::span<const ToPositionsField> fields);

 private:
  // What is known of a tensor without its memory.
  struct Shape {
    HeadKind kind = HeadKind::kQuery;
    DType dtype = DType::kF32;
    std::vector<int64_t> rest = {};  // After positions and heads.
  };
  // A part of a message: of run `run` and tensor `field`.
  struct Piece {
    int64_t peer = 0;
    size_t run = 0;
    size_t field = 0;
    IndexRange heads = {};  // Of the tensor's kind.
    int64_t offset = 0;     // In the memory of all messages.
    DType dtype = DType::kF32;
    std::vector<int64_t> shape = {};
  };
  // The messages to or from all ranks.
  struct Traffic {
    std::vector<Piece> pieces = {};
    std::vector<int64_t> counts = {};  // Bytes, by rank.
    int64_t bytes = 0;
  };

  static absl::StatusOr<TensorView> ViewOf(const TensorView& messages,
                                           const Piece& piece);
  void AddMessage(std::span<const Shape> shapes, int64_t positions_of,
                  int64_t heads_of, int64_t peer, Traffic& traffic) const;
  Traffic PositionSide(std::span<const Shape> shapes) const;
  Traffic HeadSide(std::span<const Shape> shapes) const;
  absl::StatusOr<TensorView> Exchange(const Traffic& out, TensorView sent,
                                      const Traffic& in);
  absl::Status Keep(const ToPositionsField& field, const Piece& piece,
                    ConstTensorView part) const;

  TensorGroup group_;
  SequenceLayout layout_;
  std::vector<std::vector<HeadRun>> runs_;  // By rank.
  ReusableTensor sent_{group_.memory()};
  ReusableTensor received_{group_.memory()};
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_CONTEXT_HEAD_EXCHANGE_H_
