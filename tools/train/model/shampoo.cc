#include "tools/train/model/shampoo.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "offload/optimizer/gradient_statistics.h"
#include "tools/train/model/inverse_root.h"
#include "tools/train/model/matrix_norm.h"
#include "zero3/state/state_operations.h"

namespace tessera::train {

namespace {

namespace tp = tensor_parallel;

constexpr size_t kMeasuredBytes = sizeof(offload::GradientStatistics);

int64_t StatisticsOf(const StateMatrix& matrix, int64_t block) {
  const MatrixPart& whole = matrix.place.whole;
  return StatisticsElements(whole.rows.size(), whole.columns.size(), block);
}

// The norms of all blocks, and the largest work on one of them.
int64_t ScratchOf(const MatrixPart& whole, int64_t block) {
  const int64_t rows = std::min(whole.rows.size(), block);
  const int64_t columns = std::min(whole.columns.size(), block);
  const auto blocks =
      BlocksOf(whole.rows.size(), whole.columns.size(), block).size();
  return ScratchParts::Rounded(static_cast<int64_t>(blocks)) +
         std::max(InverseRootElements(std::max(rows, columns)),
                  2 * ScratchParts::Rounded(rows * columns) +
                      NormElements(rows, columns));
}

// The statistics of matrix i.
zero3::ParameterId IdOf(size_t i) {
  return zero3::ParameterId(static_cast<int64_t>(i));
}

absl::StatusOr<TensorView> BlockOf(const TensorView& matrix,
                                   const MatrixBlock& block) {
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView rows,
      matrix.Narrow(0, block.rows.begin, block.rows.size()));
  return rows.Narrow(1, block.columns.begin, block.columns.size());
}

}  // namespace

absl::StatusOr<std::vector<StateMatrix>> ShampooMatrices(
    std::span<tp::Parameter* const> parameters, int64_t block,
    const MatrixUpdateOptions& ranks) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<StateMatrix> matrices,
                           MatricesIn(parameters, ranks));
  std::stable_sort(matrices.begin(), matrices.end(),
                   [&](const StateMatrix& a, const StateMatrix& b) {
                     return StatisticsOf(a, block) > StatisticsOf(b, block);
                   });
  return matrices;
}

int64_t TensorOwnerOf(size_t i, int64_t shard_ranks,
                      const MatrixUpdateOptions& ranks) {
  if (ranks.tensor == nullptr) return 0;
  return static_cast<int64_t>(i) / shard_ranks % ranks.tensor->size();
}

absl::StatusOr<std::unique_ptr<Shampoo>> Shampoo::Create(
    std::vector<StateMatrix> matrices, const zero3::StateLayout& layout,
    collectives::Communicator* shard, const zero3::StateDevice& device,
    zero3::ShardedState& statistics, const zero3::ShardedStateOptions& options,
    const MatrixUpdateOptions& ranks) {
  const int64_t shards = shard == nullptr ? 1 : shard->size();
  const int64_t tensors = ranks.tensor == nullptr ? 1 : ranks.tensor->size();
  std::vector<int64_t> owners;
  for (size_t i = 0; i < matrices.size(); ++i) {
    owners.push_back(static_cast<int64_t>(i) % shards * tensors +
                     TensorOwnerOf(i, shards, ranks));
  }
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<MatrixExchange> exchange,
      MatrixExchange::Create(
          std::move(matrices), owners, layout, shard, device, ranks,
          {.name = "Shampoo", .scratch = [&](const MatrixPart& whole) {
             return ScratchOf(whole, options.shampoo.block);
           }}));
  std::unique_ptr<Shampoo> shampoo(
      new Shampoo(std::move(exchange), device, statistics, options, ranks));
  TESSERA_ASSIGN_OR_RETURN(
      shampoo->measured_,
      zero3::AccountedMemory::Allocate(
          device, "checks of Shampoo",
          static_cast<int64_t>(shampoo->exchange_->rounds() * kMeasuredBytes),
          offload::Purpose::kBuffers));
  return shampoo;
}

absl::Status Shampoo::Run(zero3::MatrixShards& shards) {
  return exchange_->AbortOnError(RunRounds(shards));
}

absl::Status Shampoo::RunRounds(zero3::MatrixShards& shards) {
  const bool renews = (shards.step() - 1) % numbers_.every == 0;
  if (renews) TESSERA_RETURN_IF_ERROR(device_.ops->Zero(measured_.bytes()));
  for (size_t round = 0; round < exchange_->rounds(); ++round) {
    TESSERA_RETURN_IF_ERROR(RunRound(round, renews, shards));
  }
  return renews ? CheckRoots() : absl::OkStatus();
}

absl::Status Shampoo::RunRound(size_t round, bool renews,
                               zero3::MatrixShards& shards) {
  using Id = zero3::ParameterId;
  using Span = offload::TypedSpan;
  const auto gather = [&](auto write) {
    return exchange_->Gather(round,
                             [&](Id id, int64_t begin, const Span& values) {
                               return (shards.*write)(id, begin, values);
                             });
  };
  TESSERA_ASSIGN_OR_RETURN(const std::optional<Work> work, Begin(round));
  TESSERA_ASSIGN_OR_RETURN(const TensorView steps,
                           gather(&zero3::MatrixShards::WriteAdamWUpdate));
  if (work) TESSERA_RETURN_IF_ERROR(MeasureUpdate(*work, steps));
  TESSERA_ASSIGN_OR_RETURN(const TensorView gradient,
                           gather(&zero3::MatrixShards::WriteGradient));
  if (work) TESSERA_RETURN_IF_ERROR(AddGradient(*work, gradient));
  if (work && renews) TESSERA_RETURN_IF_ERROR(RenewRoots(*work, round));
  TESSERA_ASSIGN_OR_RETURN(const TensorView moment,
                           gather(&zero3::MatrixShards::WriteFirstMoment));
  TESSERA_ASSIGN_OR_RETURN(const TensorView update, exchange_->OtherOf(round));
  if (work) {
    TESSERA_RETURN_IF_ERROR(Precondition(*work, moment, update));
    TESSERA_RETURN_IF_ERROR(statistics_.weights().CloseOwn(
        IdOf(*exchange_->OwnIn(round)), /*changed=*/true));
  }
  return exchange_->Scatter(round, update,
                            [&](Id id, int64_t begin, const Span& values) {
                              return shards.Apply(id, begin, values);
                            });
}

absl::StatusOr<std::optional<Shampoo::Work>> Shampoo::Begin(size_t round) {
  const auto own = exchange_->OwnIn(round);
  if (!own) return std::nullopt;
  const MatrixPart& whole = exchange_->matrices()[*own].place.whole;
  std::vector<MatrixBlock> blocks =
      BlocksOf(whole.rows.size(), whole.columns.size(), numbers_.block);
  TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan statistics,
                           statistics_.weights().OpenOwn(IdOf(*own)));
  const auto count = static_cast<int64_t>(blocks.size());
  const int64_t used = ScratchParts::Rounded(count);
  TESSERA_ASSIGN_OR_RETURN(const TensorView scratch, exchange_->Scratch());
  TESSERA_ASSIGN_OR_RETURN(const TensorView norms, scratch.Narrow(0, 0, count));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView rest,
      scratch.Narrow(0, used, scratch.element_count() - used));
  return Work{std::move(blocks), statistics, norms, rest};
}

absl::StatusOr<TensorView> Shampoo::SquareOf(const Work& work, int64_t begin,
                                             int64_t size) const {
  const DType dtype = work.statistics.dtype();
  return TensorView::Create(
      {work.statistics.At(begin),
       static_cast<size_t>(size * size * SizeInBytes(dtype))},
      dtype, {{size, size}}, device_.memory->kind());
}

absl::Status Shampoo::MeasureUpdate(const Work& work,
                                    const TensorView& update) {
  for (size_t i = 0; i < work.blocks.size(); ++i) {
    const MatrixBlock& block = work.blocks[i];
    const int64_t rows = block.rows.size(), columns = block.columns.size();
    ScratchParts parts(work.scratch);
    TESSERA_ASSIGN_OR_RETURN(const TensorView own, parts.Take({rows, columns}));
    TESSERA_ASSIGN_OR_RETURN(const TensorView other,
                             parts.Take({rows, columns}));
    TESSERA_ASSIGN_OR_RETURN(const TensorView part, BlockOf(update, block));
    TESSERA_RETURN_IF_ERROR(ops_.Run(tp::op::Copy{part, own}));
    TESSERA_ASSIGN_OR_RETURN(const MatrixNorm norm,
                             NormOf(ops_, own, other, parts));
    TESSERA_ASSIGN_OR_RETURN(const TensorView kept,
                             work.norms.Narrow(0, static_cast<int64_t>(i), 1));
    TESSERA_RETURN_IF_ERROR(ops_.Run(tp::op::Copy{norm.norm, kept}));
  }
  return absl::OkStatus();
}

absl::Status Shampoo::AddGradient(const Work& work,
                                  const TensorView& gradient) {
  for (const MatrixBlock& block : work.blocks) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView g, BlockOf(gradient, block));
    TESSERA_ASSIGN_OR_RETURN(const TensorView left,
                             SquareOf(work, block.left, block.rows.size()));
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView right,
        SquareOf(work, block.right(), block.columns.size()));
    TESSERA_RETURN_IF_ERROR(ops_.Run(
        tp::op::Gemm{{.transpose_b = true, .alpha = 1 - beta2_, .beta = beta2_},
                     g,
                     g,
                     left}));
    TESSERA_RETURN_IF_ERROR(ops_.Run(
        tp::op::Gemm{{.transpose_a = true, .alpha = 1 - beta2_, .beta = beta2_},
                     g,
                     g,
                     right}));
  }
  return absl::OkStatus();
}

absl::Status Shampoo::RenewRoots(const Work& work, size_t round) {
  const auto renew = [&](int64_t from, int64_t to,
                         int64_t size) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const TensorView average,
                             SquareOf(work, from, size));
    TESSERA_ASSIGN_OR_RETURN(const TensorView root, SquareOf(work, to, size));
    return InverseFourthRoot(ops_, average, numbers_.epsilon, root,
                             work.scratch);
  };
  for (const MatrixBlock& block : work.blocks) {
    TESSERA_RETURN_IF_ERROR(
        renew(block.left, block.left_root(), block.rows.size()));
    TESSERA_RETURN_IF_ERROR(
        renew(block.right(), block.right_root(), block.columns.size()));
  }
  return device_.ops->Run(zero3::op::Measure{
      work.statistics,
      measured_.bytes().subspan(round * kMeasuredBytes, kMeasuredBytes)});
}

absl::Status Shampoo::Precondition(const Work& work, const TensorView& moment,
                                   const TensorView& update) {
  for (size_t i = 0; i < work.blocks.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(PreconditionBlock(work, i, moment, update));
  }
  return absl::OkStatus();
}

// The factor is negative because the gathered moment is.
absl::Status Shampoo::PreconditionBlock(const Work& work, size_t block,
                                        const TensorView& moment,
                                        const TensorView& update) {
  const MatrixBlock& place = work.blocks[block];
  const int64_t rows = place.rows.size(), columns = place.columns.size();
  ScratchParts parts(work.scratch);
  TESSERA_ASSIGN_OR_RETURN(const TensorView half, parts.Take({rows, columns}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView product,
                           parts.Take({rows, columns}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView m, BlockOf(moment, place));
  TESSERA_ASSIGN_OR_RETURN(const TensorView left,
                           SquareOf(work, place.left_root(), rows));
  TESSERA_ASSIGN_OR_RETURN(const TensorView right,
                           SquareOf(work, place.right_root(), columns));
  TESSERA_RETURN_IF_ERROR(ops_.Run(tp::op::Gemm{{.alpha = -1}, left, m, half}));
  TESSERA_RETURN_IF_ERROR(ops_.Run(tp::op::Gemm{{}, half, right, product}));
  TESSERA_ASSIGN_OR_RETURN(const MatrixNorm norm,
                           NormOf(ops_, product, half, parts));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView grafted,
      work.norms.Narrow(0, static_cast<int64_t>(block), 1));
  TESSERA_RETURN_IF_ERROR(ScaleBy(ops_, norm.inverse, product));
  TESSERA_RETURN_IF_ERROR(ScaleBy(ops_, grafted, product));
  TESSERA_ASSIGN_OR_RETURN(const TensorView target, BlockOf(update, place));
  return ops_.Run(tp::op::Copy{product, target});
}

absl::Status Shampoo::CheckRoots() {
  if (!device_.ops->computes() || measured_.bytes().empty()) {
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(const Download download,
                           staging_.StartDownload(measured_.bytes()));
  TESSERA_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                           download.Wait());
  for (size_t round = 0; round < exchange_->rounds(); ++round) {
    offload::GradientStatistics found;
    std::memcpy(&found, bytes.data() + round * kMeasuredBytes, kMeasuredBytes);
    if (found.IsFinite()) continue;
    const size_t own = *exchange_->OwnIn(round);
    const StateMatrix& matrix = exchange_->matrices()[own];
    return absl::InternalError(absl::StrCat(
        "Shampoo: the inverse roots \"",
        statistics_.layout().model()[IdOf(own)].name(), "\" of [",
        matrix.place.whole.rows.size(), ", ", matrix.place.whole.columns.size(),
        "] are not finite: the gradients are too small or too large for ",
        DTypeName(matrix.dtype), ", or epsilon, ", numbers_.epsilon,
        ", is below its rounding errors; use a larger one"));
  }
  return absl::OkStatus();
}

}  // namespace tessera::train
