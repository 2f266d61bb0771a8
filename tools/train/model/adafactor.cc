#include "tools/train/model/adafactor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/operation/operation.h"
#include "offload/optimizer/gradient_statistics.h"
#include "tools/train/model/moment_tensors.h"
#include "zero3/state/state_operations.h"

namespace tessera::train {

namespace {

namespace tp = tensor_parallel;

offload::TypedSpan Part(const offload::TypedSpan& span, int64_t begin,
                        int64_t size) {
  return {span.At(begin), span.dtype(), size};
}

// 1 - beta2 of a step.
double NewShare(const zero3::AdafactorNumbers& numbers, int64_t step) {
  return std::pow(static_cast<double>(step), numbers.beta2_decay);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Adafactor>> Adafactor::Create(
    std::span<tp::Parameter* const> parameters,
    std::span<const Trained> trained, const zero3::StateLayout& layout,
    collectives::Communicator* shard, const zero3::StateDevice& device,
    const zero3::AdafactorNumbers& numbers,
    const MatrixUpdateOptions& options) {
  std::unique_ptr<Adafactor> adafactor(
      new Adafactor(layout, shard, device, numbers, options));
  if (shard != nullptr) adafactor->shard_rank_ = shard->rank().value();
  for (const Trained& ids : trained) {
    TESSERA_RETURN_IF_ERROR(
        adafactor->AddWeight(*parameters[zero3::IndexOf(ids.weight)],
                             *parameters[zero3::IndexOf(ids.moments)], ids));
  }
  TESSERA_RETURN_IF_ERROR(adafactor->Allocate());
  return adafactor;
}

absl::Status Adafactor::AddWeight(const tp::Parameter& parameter,
                                  const tp::Parameter& moments,
                                  const Trained& ids) {
  const int64_t rows = parameter.shape()[0];
  std::vector<tp::IndexRange> matrices =
      MatricesOf(parameter.name(), rows, options_.model);
  if (matrices.back().end != rows) {
    return absl::InternalError(absl::StrCat(
        "the matrices of parameter \"", parameter.name(), "\" have ",
        matrices.back().end, " rows, the parameter has ", rows));
  }
  const auto all = static_cast<int64_t>(matrices.size());
  int64_t first = 0, count = all;
  if (parameter.expert_parallel() && options_.experts != nullptr) {
    count = all / options_.experts->size();
    first = options_.experts->rank().value() * count;
  }
  const std::span<const tp::IndexRange> own = std::span(matrices).subspan(
      static_cast<size_t>(first), static_cast<size_t>(count));
  dtype_ = tp::GradientDType(parameter.dtype());
  const size_t index = matrices_.size();
  MomentPlaces places = AddMatrices(parameter, own, ids.weight);
  // The moments of columns follow those of all rows, also of other experts.
  const int64_t columns =
      matrices_[index].is_factored ? matrices_[index].columns : 0;
  places.of_columns -= rows + first * columns;
  AddPieces(parameter, index, own, ids.weight);
  AddOwnedMoments(moments, ids.moments, rows, places);
  return absl::OkStatus();
}

// Returns the places of the first row's index and of the columns.
Adafactor::MomentPlaces Adafactor::AddMatrices(
    const tp::Parameter& parameter, std::span<const tp::IndexRange> matrices,
    zero3::ParameterId id) {
  const bool is_factored = parameter.shape().size() == 2;
  const int64_t columns = is_factored ? parameter.shape()[1] : 1;
  const MomentPlaces places = {
      .of_rows = message_elements_ - matrices.front().begin,
      .of_columns =
          message_elements_ + matrices.back().end - matrices.front().begin};
  message_elements_ = places.of_columns;
  for (const tp::IndexRange& matrix : matrices) {
    matrices_.push_back({.id = id,
                         .rows = matrix.size(),
                         .columns = columns,
                         .is_factored = is_factored,
                         .rows_at = places.of_rows + matrix.begin,
                         .columns_at = message_elements_});
    if (is_factored) message_elements_ += columns;
  }
  return places;
}

void Adafactor::AddPieces(const tp::Parameter& parameter, size_t first,
                          std::span<const tp::IndexRange> matrices,
                          zero3::ParameterId id) {
  OwnedWeight weight = {.id = id};
  const zero3::Extent extent =
      layout_.ExtentOf(topology::Rank(shard_rank_), weight.id);
  const int64_t width = parameter.columns().size();
  if (width == 0) return;
  int64_t at = 0;  // The first element of the held range.
  for (const tp::ParameterRows& held : parameter.rows()) {
    for (size_t i = 0; i < matrices.size(); ++i) {
      const int64_t top = std::max(held.range.begin, matrices[i].begin);
      const int64_t bottom = std::min(held.range.end, matrices[i].end);
      const int64_t zero = at + (top - held.range.begin) * width;
      const int64_t end =
          std::min(extent.end, at + (bottom - held.range.begin) * width);
      for (int64_t begin = std::max(extent.begin, zero);
           top < bottom && begin < end; begin += kPieceElements) {
        weight.pieces.push_back(
            {.matrix = first + i,
             .counts = held.primary,
             .begin = begin - extent.begin,
             .size = std::min(kPieceElements, end - begin),
             .row = top - matrices[i].begin + (begin - zero) / width,
             .offset = (begin - zero) % width,
             .columns = parameter.columns()});
      }
    }
    at += held.range.size() * width;
  }
  if (!weight.pieces.empty()) weights_.push_back(std::move(weight));
}

void Adafactor::AddOwnedMoments(const tp::Parameter& moments,
                                zero3::ParameterId id, int64_t rows,
                                const MomentPlaces& places) {
  const zero3::Extent extent =
      layout_.ExtentOf(topology::Rank(shard_rank_), id);
  OwnedMoments own = {.id = id};
  int64_t at = 0;
  for (const tp::ParameterRows& held : moments.rows()) {
    const int64_t begin = std::max(extent.begin, at);
    const int64_t end = std::min(extent.end, at + held.range.size());
    if (begin < end) {
      const int64_t shift =
          held.range.begin < rows ? places.of_rows : places.of_columns;
      own.slices.push_back({.begin = begin - extent.begin,
                            .size = end - begin,
                            .at = shift + held.range.begin + begin - at,
                            .counts = held.primary});
    }
    at += held.range.size();
  }
  if (!own.slices.empty()) moments_.push_back(std::move(own));
}

absl::Status Adafactor::Allocate() {
  int64_t largest = 0;
  for (const OwnedWeight& weight : weights_) {
    for (const Piece& piece : weight.pieces) {
      largest = std::max(largest, piece.size);
    }
  }
  struct Use {
    offload::TypedSpan& span;
    DType dtype;
    int64_t elements;
  };
  static_assert(sizeof(offload::GradientStatistics) == 2 * sizeof(double));
  const Use uses[] = {
      {message_, dtype_, message_elements_},
      {norms_, DType::kF64, 2 * static_cast<int64_t>(matrices_.size())},
      {update_, dtype_, largest},
      {measured_, DType::kF64, 2}};
  constexpr int64_t kAligned = 64;
  const auto bytes_of = [](const Use& use) {
    return (use.elements * SizeInBytes(use.dtype) + kAligned - 1) / kAligned *
           kAligned;
  };
  int64_t bytes = 0;
  for (const Use& use : uses) bytes += bytes_of(use);
  TESSERA_ASSIGN_OR_RETURN(memory_, zero3::AccountedMemory::Allocate(
                                        device_, "statistics of Adafactor",
                                        bytes, offload::Purpose::kBuffers));
  std::byte* at = memory_.bytes().data();
  for (const Use& use : uses) {
    use.span = {at, use.dtype, use.elements};
    at += bytes_of(use);
  }
  return absl::OkStatus();
}

absl::Status Adafactor::Run(zero3::MatrixShards& shards) {
  return AbortOnError(RunStep(shards), {shard_, options_.tensor});
}

absl::Status Adafactor::RunStep(zero3::MatrixShards& shards) {
  for (const offload::TypedSpan& message : {message_, norms_}) {
    TESSERA_RETURN_IF_ERROR(device_.ops->Zero(
        {message.data(), static_cast<size_t>(message.size_in_bytes())}));
  }
  TESSERA_RETURN_IF_ERROR(AddOwnMoments(shards));
  TESSERA_RETURN_IF_ERROR(AddSquares(shards));
  TESSERA_RETURN_IF_ERROR(SumOverRanks(message_));
  TESSERA_RETURN_IF_ERROR(KeepOwnMoments(shards));
  TESSERA_RETURN_IF_ERROR(MeasureUpdates(shards));
  TESSERA_RETURN_IF_ERROR(SumOverRanks(norms_));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<double> factors,
                           FactorsOf(shards));
  return UpdateWeights(shards, factors);
}

absl::Status Adafactor::SumOverRanks(const offload::TypedSpan& message) {
  const collectives::Buffer buffer(message.data(), message.size(),
                                   message.dtype());
  for (collectives::Communicator* const group : {shard_, options_.tensor}) {
    if (group == nullptr || group->size() == 1) continue;
    TESSERA_RETURN_IF_ERROR(group->RunOn(
        *device_.queue, collectives::AllReduceOf(
                            buffer, buffer, collectives::Reduction::Sum())));
  }
  return absl::OkStatus();
}

// The decayed moments, each from one rank.
absl::Status Adafactor::AddOwnMoments(zero3::MatrixShards& shards) {
  const double kept = 1 - NewShare(numbers_, shards.step());
  for (const OwnedMoments& own : moments_) {
    TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan values,
                             shards.OpenFrozen(own.id));
    for (const Slice& slice : own.slices) {
      const offload::TypedSpan part = Part(values, slice.begin, slice.size);
      TESSERA_RETURN_IF_ERROR(device_.ops->Run(zero3::op::Scale{kept, part}));
      if (!slice.counts) continue;
      TESSERA_RETURN_IF_ERROR(device_.ops->Run(zero3::op::Add{
          dtype_, part.data(), message_.At(slice.at), slice.size}));
    }
    TESSERA_RETURN_IF_ERROR(shards.CloseFrozen(own.id, /*changed=*/true));
  }
  return absl::OkStatus();
}

absl::Status Adafactor::KeepOwnMoments(zero3::MatrixShards& shards) {
  for (const OwnedMoments& own : moments_) {
    TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan values,
                             shards.OpenFrozen(own.id));
    for (const Slice& slice : own.slices) {
      const auto bytes = static_cast<size_t>(slice.size * SizeInBytes(dtype_));
      TESSERA_RETURN_IF_ERROR(device_.ops->Copy(
          {message_.At(slice.at), bytes}, {values.At(slice.begin), bytes}));
    }
    TESSERA_RETURN_IF_ERROR(shards.CloseFrozen(own.id, /*changed=*/true));
  }
  return absl::OkStatus();
}

offload::TypedSpan Adafactor::RowsOf(const Piece& piece) const {
  const int64_t width = piece.columns.size();
  const int64_t rows = (piece.offset + piece.size + width - 1) / width;
  return Part(message_, matrices_[piece.matrix].rows_at + piece.row, rows);
}

offload::TypedSpan Adafactor::ColumnsOf(const Piece& piece) const {
  const Matrix& matrix = matrices_[piece.matrix];
  if (!matrix.is_factored) return {};
  return Part(message_, matrix.columns_at + piece.columns.begin,
              piece.columns.size());
}

// The squares of gradients and of weights.
absl::Status Adafactor::AddSquares(zero3::MatrixShards& shards) {
  const double share = NewShare(numbers_, shards.step());
  for (const OwnedWeight& weight : weights_) {
    TESSERA_ASSIGN_OR_RETURN(const offload::ConstTypedSpan gradient,
                             shards.OpenGradient(weight.id));
    TESSERA_ASSIGN_OR_RETURN(const offload::ParameterRange range,
                             shards.OpenWeights(weight.id));
    for (const Piece& piece : weight.pieces) {
      if (!piece.counts) continue;
      const Matrix& matrix = matrices_[piece.matrix];
      TESSERA_RETURN_IF_ERROR(device_.ops->Run(zero3::op::SumSquares{
          .values = {gradient.At(piece.begin), gradient.dtype(), piece.size},
          .scale = shards.gradient_scale(),
          .offset = piece.offset,
          .width = piece.columns.size(),
          .row_weight = share / static_cast<double>(matrix.columns),
          .column_weight = share / static_cast<double>(matrix.rows),
          .rows = RowsOf(piece),
          .columns = ColumnsOf(piece),
          .pool = shards.pool()}));
      TESSERA_RETURN_IF_ERROR(AddNorm(
          Part(range.parameter, piece.begin, piece.size), 2 * piece.matrix));
    }
    TESSERA_RETURN_IF_ERROR(shards.CloseWeights(weight.id, /*changed=*/false));
    TESSERA_RETURN_IF_ERROR(shards.CloseGradient(weight.id));
  }
  return absl::OkStatus();
}

absl::Status Adafactor::AddNorm(const offload::ConstTypedSpan& values,
                                size_t index) {
  TESSERA_RETURN_IF_ERROR(device_.ops->Run(zero3::op::Measure{
      values,
      {measured_.data(), static_cast<size_t>(measured_.size_in_bytes())}}));
  return device_.ops->Run(zero3::op::Add{DType::kF64, measured_.data(),
                                         norms_.At(static_cast<int64_t>(index)),
                                         1});
}

double Adafactor::epsilon1() const {
  return dtype_ == DType::kF64
             ? std::numeric_limits<double>::epsilon()
             : static_cast<double>(std::numeric_limits<float>::epsilon());
}

absl::StatusOr<offload::TypedSpan> Adafactor::WriteUpdate(
    const zero3::MatrixShards& shards, const Piece& piece,
    const offload::ConstTypedSpan& gradient, double factor) {
  const offload::TypedSpan update = Part(update_, 0, piece.size);
  TESSERA_RETURN_IF_ERROR(device_.ops->Run(zero3::op::FactoredUpdate{
      .values = {gradient.At(piece.begin), gradient.dtype(), piece.size},
      .scale = shards.gradient_scale(),
      .factor = factor,
      .least = epsilon1(),
      .offset = piece.offset,
      .width = piece.columns.size(),
      .rows = RowsOf(piece),
      .columns = ColumnsOf(piece),
      .update = update,
      .pool = shards.pool()}));
  return update;
}

absl::Status Adafactor::MeasureUpdates(zero3::MatrixShards& shards) {
  for (const Matrix& matrix : matrices_) {
    if (!matrix.is_factored || matrix.rows == 0) continue;
    TESSERA_RETURN_IF_ERROR(device_.ops->Run(zero3::op::DivideByMean{
        epsilon1(), Part(message_, matrix.rows_at, matrix.rows),
        Part(message_, matrix.columns_at, matrix.columns)}));
  }
  for (const OwnedWeight& weight : weights_) {
    TESSERA_ASSIGN_OR_RETURN(const offload::ConstTypedSpan gradient,
                             shards.OpenGradient(weight.id));
    for (const Piece& piece : weight.pieces) {
      if (!piece.counts) continue;
      TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan update,
                               WriteUpdate(shards, piece, gradient, 1));
      TESSERA_RETURN_IF_ERROR(AddNorm(update, 2 * piece.matrix + 1));
    }
    TESSERA_RETURN_IF_ERROR(shards.CloseGradient(weight.id));
  }
  return absl::OkStatus();
}

// The factor of each matrix's update, which Apply multiplies by the learning
// rate.
absl::StatusOr<std::vector<double>> Adafactor::FactorsOf(
    zero3::MatrixShards& shards) {
  std::vector<double> factors(matrices_.size(), 1);
  if (!device_.ops->computes()) return factors;
  TESSERA_ASSIGN_OR_RETURN(
      const Download download,
      staging_.StartDownload(
          {norms_.data(), static_cast<size_t>(norms_.size_in_bytes())}));
  TESSERA_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                           download.Wait());
  std::vector<double> squares(2 * factors.size());
  std::memcpy(squares.data(), bytes.data(), bytes.size());
  const double steps = std::sqrt(static_cast<double>(shards.step()));
  for (size_t i = 0; i < factors.size(); ++i) {
    const Matrix& matrix = matrices_[i];
    const auto elements =
        static_cast<double>(std::max<int64_t>(matrix.rows * matrix.columns, 1));
    const double rate = shards.LearningRateOf(matrix.id);
    const double weights = std::sqrt(squares[2 * i] / elements);
    const double updates = std::sqrt(squares[2 * i + 1] / elements);
    factors[i] = std::max(numbers_.epsilon2, weights) *
                 std::min(1.0, 1 / (rate * steps)) /
                 std::max(1.0, updates / numbers_.threshold);
  }
  return factors;
}

absl::Status Adafactor::UpdateWeights(zero3::MatrixShards& shards,
                                      std::span<const double> factors) {
  for (const OwnedWeight& weight : weights_) {
    TESSERA_ASSIGN_OR_RETURN(const offload::ConstTypedSpan gradient,
                             shards.OpenGradient(weight.id));
    TESSERA_ASSIGN_OR_RETURN(const offload::ParameterRange range,
                             shards.OpenWeights(weight.id));
    for (const Piece& piece : weight.pieces) {
      TESSERA_ASSIGN_OR_RETURN(
          const offload::TypedSpan update,
          WriteUpdate(shards, piece, gradient, factors[piece.matrix]));
      TESSERA_RETURN_IF_ERROR(
          shards.ApplyTo(range, weight.id, piece.begin, update));
    }
    TESSERA_RETURN_IF_ERROR(shards.CloseWeights(weight.id, /*changed=*/true));
    TESSERA_RETURN_IF_ERROR(shards.CloseGradient(weight.id));
  }
  return absl::OkStatus();
}

}  // namespace tessera::train
