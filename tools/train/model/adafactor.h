// The Adafactor optimizer: second moments of rows and columns instead of
// elements, and steps relative to the size of the weights (N. Shazeer and M.
// Stern, "Adafactor: Adaptive learning rates with sublinear memory cost", arXiv
// 1804.04235, with the learning rate, the weight decay and the use of epsilon
// of torch.optim.Adafactor).
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto adafactor,
//       Adafactor::Create(parameters, moments, state->layout(), data, device,
//                         numbers, {.model = model, .tensor = tp}));
//   TESSERA_ASSIGN_OR_RETURN(auto report, state->Step(adafactor.get()));
//
// For each matrix of a weight (MatricesOf), with gradient g, weights p, t the
// step and l the learning rate:
//
//   b <- 1 - t^beta2_decay
//   r <- b r + (1 - b) (means of g^2 over columns), c likewise over rows
//   v <- r c / max(mean(r), epsilon1)
//   u <- g / sqrt(max(v, epsilon1^2))
//   s <- max(epsilon2, RMS(p)) min(l, 1 / sqrt(t)) / max(1, RMS(u) / threshold)
//   p <- p (1 - l weight_decay) - s u
//
// Vectors have a moment v for each element.
//
// The moments of a weight are a frozen parameter of the same state, so that
// they are sharded (below stage 3 every rank has all of them), offloaded and
// saved as weights are. The ranks never
// exchange gradients or weights: each adds the squares of the elements that it
// owns to the moments of its own slices, and a step has two messages, each
// summed over the shard ranks and then over the tensor ranks:
//
//   all moments of this stage's weights         rows + columns, f32 or f64
//   sums of squares of weights and of updates   2 for each matrix, f64
//
// The host waits for the second message. Working memory is that of the messages
// and of an update of at most kPieceElements elements.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_ADAFACTOR_H_
#define TESSERA_TOOLS_TRAIN_MODEL_ADAFACTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/staging.h"
#include "base/dtype/dtype.h"
#include "collectives/communicator.h"
#include "offload/optimizer/parameter_range.h"
#include "tensor_parallel/layers/parameter.h"
#include "tools/train/model/hidden_matrices.h"
#include "zero3/layout/state_layout.h"
#include "zero3/state/optimizer_shard.h"
#include "zero3/state/state_device.h"
#include "zero3/state/state_options.h"

namespace tessera::train {

class Adafactor final : public zero3::MatrixUpdates {
 public:
  static constexpr int64_t kPieceElements = int64_t{1} << 22;

  // A trained parameter, and the frozen one that holds its moments
  // (MomentsOf).
  struct Trained {
    zero3::ParameterId weight = {};
    zero3::ParameterId moments = {};
  };

  // `parameters`, ordered by id, are those of `layout`, the partition of their
  // state over `shard` (null: every rank has the whole state). Working memory
  // counts as buffers of `device`. All arguments must outlive this, except for
  // `trained`. ResourceExhausted if the device has too little memory.
  static absl::StatusOr<std::unique_ptr<Adafactor>> Create(
      std::span<tensor_parallel::Parameter* const> parameters,
      std::span<const Trained> trained, const zero3::StateLayout& layout,
      collectives::Communicator* shard, const zero3::StateDevice& device,
      const zero3::AdafactorNumbers& numbers,
      const MatrixUpdateOptions& options);

  // An error aborts the groups, so that no rank waits for this one.
  absl::Status Run(zero3::MatrixShards& shards) override;

 private:
  // A matrix or vector, with the places of its moments in the message.
  struct Matrix {
    zero3::ParameterId id;
    int64_t rows = 0;
    int64_t columns = 1;
    bool is_factored = false;
    int64_t rows_at = 0;
    int64_t columns_at = 0;  // If it is factored.
  };
  // Elements of one matrix that this rank owns.
  struct Piece {
    size_t matrix = 0;
    bool counts = true;  // This tensor rank is the first that holds them.
    int64_t begin = 0;   // In the elements that this rank owns.
    int64_t size = 0;
    int64_t row = 0;  // Of the first element, in the matrix.
    int64_t offset = 0;
    tensor_parallel::IndexRange columns = {};  // The held ones.
  };
  struct OwnedWeight {
    zero3::ParameterId id;
    std::vector<Piece> pieces = {};
  };
  // Moments that this rank owns.
  struct Slice {
    int64_t begin = 0;  // In the elements that this rank owns.
    int64_t size = 0;
    int64_t at = 0;  // In the message.
    bool counts = true;
  };
  struct OwnedMoments {
    zero3::ParameterId id;
    std::vector<Slice> slices = {};
  };
  // The distances from a moment's index in its tensor to its place in the
  // message.
  struct MomentPlaces {
    int64_t of_rows = 0;
    int64_t of_columns = 0;
  };

  Adafactor(const zero3::StateLayout& layout, collectives::Communicator* shard,
            const zero3::StateDevice& device,
            const zero3::AdafactorNumbers& numbers,
            const MatrixUpdateOptions& options)
      : layout_(layout),
        shard_(shard),
        device_(device),
        numbers_(numbers),
        options_(options),
        staging_(*device.queue) {}

  absl::Status AddWeight(const tensor_parallel::Parameter& parameter,
                         const tensor_parallel::Parameter& moments,
                         const Trained& ids);
  void AddPieces(const tensor_parallel::Parameter& parameter, size_t first,
                 std::span<const tensor_parallel::IndexRange> matrices,
                 zero3::ParameterId id);
  MomentPlaces AddMatrices(
      const tensor_parallel::Parameter& parameter,
      std::span<const tensor_parallel::IndexRange> matrices,
      zero3::ParameterId id);
  void AddOwnedMoments(const tensor_parallel::Parameter& moments,
                       zero3::ParameterId id, int64_t rows,
                       const MomentPlaces& places);
  absl::Status Allocate();

  absl::Status RunStep(zero3::MatrixShards& shards);
  // The parts of a step, in this order.
  absl::Status AddOwnMoments(zero3::MatrixShards& shards);
  absl::Status AddSquares(zero3::MatrixShards& shards);
  absl::Status KeepOwnMoments(zero3::MatrixShards& shards);
  absl::Status MeasureUpdates(zero3::MatrixShards& shards);
  absl::StatusOr<std::vector<double>> FactorsOf(zero3::MatrixShards& shards);
  absl::Status UpdateWeights(zero3::MatrixShards& shards,
                             std::span<const double> factors);

  // Writes the update of a piece, times `factor`, to the beginning of update_.
  absl::StatusOr<offload::TypedSpan> WriteUpdate(
      const zero3::MatrixShards& shards, const Piece& piece,
      const offload::ConstTypedSpan& gradient, double factor);
  // Adds the sum of the squares of `values` to number `index` of the second
  // message.
  absl::Status AddNorm(const offload::ConstTypedSpan& values, size_t index);
  absl::Status SumOverRanks(const offload::TypedSpan& message);
  offload::TypedSpan RowsOf(const Piece& piece) const;
  offload::TypedSpan ColumnsOf(const Piece& piece) const;
  double epsilon1() const;

  const zero3::StateLayout layout_;
  collectives::Communicator* const shard_;
  const zero3::StateDevice device_;
  const zero3::AdafactorNumbers numbers_;
  const MatrixUpdateOptions options_;
  StagingPool staging_;
  int64_t shard_rank_ = 0;
  DType dtype_ = DType::kF32;  // Of moments and updates.
  std::vector<Matrix> matrices_;
  std::vector<OwnedWeight> weights_;
  std::vector<OwnedMoments> moments_;
  int64_t message_elements_ = 0;
  zero3::AccountedMemory memory_;
  // Ranges of memory_: the two messages, an update, and the result of Measure.
  offload::TypedSpan message_, norms_, update_, measured_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_ADAFACTOR_H_
