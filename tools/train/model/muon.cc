#include "tools/train/model/muon.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "collectives/operation/operation.h"
#include "tools/train/model/newton_schulz.h"

namespace tessera::train {

namespace {

namespace tp = tensor_parallel;

// The factor on the square root of the larger side: J. Liu et al., equation 4.
constexpr double kUpdateScale = 0.2;

offload::TypedSpan From(const offload::TypedSpan& memory, int64_t begin) {
  return {memory.At(begin), memory.dtype(), memory.size() - begin};
}

int64_t SumOf(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

int64_t PackedElements(const HiddenMatrix& matrix) {
  int64_t elements = 0;
  for (const MatrixPart& part : matrix.parts) elements += part.elements();
  return elements;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Muon>> Muon::Create(
    std::span<tp::Parameter* const> parameters,
    const zero3::StateLayout& layout, collectives::Communicator* shard,
    const zero3::StateDevice& device, const MatrixUpdateOptions& options) {
  std::unique_ptr<Muon> muon(new Muon(layout, shard, device, options));
  if (shard != nullptr) {
    muon->shard_ranks_ = shard->size();
    muon->shard_rank_ = shard->rank().value();
  }
  if (options.tensor != nullptr) {
    muon->tensor_ranks_ = options.tensor->size();
    muon->tensor_rank_ = options.tensor->rank().value();
  }
  TESSERA_RETURN_IF_ERROR(muon->AddMatrices(parameters));
  TESSERA_RETURN_IF_ERROR(muon->PlanRounds());
  TESSERA_RETURN_IF_ERROR(muon->Allocate());
  return muon;
}

absl::Status Muon::AddMatrices(std::span<tp::Parameter* const> parameters) {
  MatrixRanks ranks = {.tensor_rank = tensor_rank_,
                       .tensor_ranks = tensor_ranks_};
  if (options_.experts != nullptr) {
    ranks.expert_rank = options_.experts->rank().value();
    ranks.expert_ranks = options_.experts->size();
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(
        std::vector<HiddenMatrix> places,
        HiddenMatricesOf(*parameters[i], options_.model, ranks));
    for (HiddenMatrix& place : places) {
      if (place.whole.elements() == 0) continue;
      dtype_ = tp::GradientDType(parameters[i]->dtype());
      matrices_.push_back(
          {zero3::ParameterId(static_cast<int64_t>(i)), std::move(place)});
    }
  }
  return absl::OkStatus();
}

// Assigns the largest matrices first, so that the matrices of a round have
// similar sizes.
absl::Status Muon::PlanRounds() {
  std::vector<int64_t> work;
  for (const Matrix& matrix : matrices_) {
    const MatrixPart& whole = matrix.place.whole;
    work.push_back(whole.elements() *
                   std::min(whole.rows.size(), whole.columns.size()));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<topology::Rank> owners,
      zero3::BalanceLargestFirst(work, shard_ranks_ * tensor_ranks_));
  std::vector<size_t> order(matrices_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return work[a] > work[b]; });
  std::vector<size_t> taken(static_cast<size_t>(shard_ranks_ * tensor_ranks_));
  for (const size_t matrix : order) {
    const auto owner = static_cast<size_t>(owners[matrix].value());
    const size_t round = taken[owner]++;
    if (round == rounds_.size()) rounds_.emplace_back(taken.size());
    rounds_[round][owner] = matrix;
  }
  return absl::OkStatus();
}

absl::Status Muon::Allocate() {
  int64_t pieces = 0, parts = 0, matrix = 0, scratch = 0;
  for (const Round& round : rounds_) {
    for (int64_t t = 0; shard_ranks_ > 1 && t < tensor_ranks_; ++t) {
      pieces = std::max(pieces, SumOf(ShardCounts(round, t).sent));
    }
    if (tensor_ranks_ > 1) {
      parts = std::max(parts, SumOf(TensorCounts(round).sent));
    }
    const Matrix* const own = MatrixOf(round, shard_rank_, tensor_rank_);
    if (own == nullptr) continue;
    const MatrixPart& whole = own->place.whole;
    matrix = std::max({matrix, whole.elements(), PackedElements(own->place)});
    scratch = std::max(
        scratch, NewtonSchulzElements(whole.rows.size(), whole.columns.size()));
  }
  constexpr int64_t kAligned = 64;
  int64_t bytes = 0;
  const auto place = [&](int64_t elements) {
    const int64_t begin = bytes;
    bytes +=
        (elements * SizeInBytes(dtype_) + kAligned - 1) / kAligned * kAligned;
    return begin;
  };
  struct Use {
    offload::TypedSpan& span;
    int64_t elements;
    int64_t begin;
  };
  Use uses[] = {{pieces_, pieces, place(pieces)},
                {parts_, parts, place(parts)},
                {matrix_, matrix, place(matrix)},
                {other_, matrix, place(matrix)},
                {scratch_, scratch, place(scratch)}};
  TESSERA_ASSIGN_OR_RETURN(memory_, zero3::AccountedMemory::Allocate(
                                        device_, "matrices of Muon", bytes,
                                        offload::Purpose::kBuffers));
  for (const Use& use : uses) {
    use.span = {memory_.bytes().data() + use.begin, dtype_, use.elements};
  }
  return absl::OkStatus();
}

const Muon::Matrix* Muon::MatrixOf(const Round& round, int64_t shard_rank,
                                   int64_t tensor_rank) const {
  const auto owner =
      static_cast<size_t>(shard_rank * tensor_ranks_ + tensor_rank);
  return round[owner].has_value() ? &matrices_[*round[owner]] : nullptr;
}

const MatrixPart& Muon::OwnPart(const Matrix& matrix) const {
  return matrix.place.parts[static_cast<size_t>(tensor_rank_)];
}

Muon::Piece Muon::PieceOf(const Matrix& matrix, int64_t shard_rank) const {
  const zero3::Extent extent =
      layout_.ExtentOf(topology::Rank(shard_rank), matrix.id);
  const int64_t first = matrix.place.begin;
  const int64_t begin = std::max(extent.begin, first);
  const int64_t end = std::min(extent.end, first + OwnPart(matrix).elements());
  return {begin, std::max<int64_t>(end - begin, 0)};
}

Muon::Counts Muon::ShardCounts(const Round& round, int64_t tensor_rank) const {
  Counts counts;
  const Matrix* const own = MatrixOf(round, shard_rank_, tensor_rank);
  for (int64_t s = 0; s < shard_ranks_; ++s) {
    const Matrix* const matrix = MatrixOf(round, s, tensor_rank);
    counts.sent.push_back(
        matrix == nullptr ? 0 : PieceOf(*matrix, shard_rank_).size);
    counts.received.push_back(own == nullptr ? 0 : PieceOf(*own, s).size);
    counts.any |= matrix != nullptr;
  }
  return counts;
}

Muon::Counts Muon::TensorCounts(const Round& round) const {
  Counts counts;
  const Matrix* const own = MatrixOf(round, shard_rank_, tensor_rank_);
  for (int64_t t = 0; t < tensor_ranks_; ++t) {
    const Matrix* const matrix = MatrixOf(round, shard_rank_, t);
    counts.sent.push_back(matrix == nullptr ? 0 : OwnPart(*matrix).elements());
    counts.received.push_back(
        own == nullptr ? 0
                       : own->place.parts[static_cast<size_t>(t)].elements());
    counts.any |= matrix != nullptr;
  }
  return counts;
}

absl::StatusOr<TensorView> Muon::ViewOf(
    const offload::TypedSpan& memory,
    std::initializer_list<int64_t> shape) const {
  return TensorView::Create(
      {memory.data(), static_cast<size_t>(memory.size_in_bytes())},
      memory.dtype(), shape, device_.memory->kind());
}

absl::Status Muon::Exchange(collectives::Communicator& group,
                            const offload::TypedSpan& from,
                            const std::vector<int64_t>& sent,
                            const offload::TypedSpan& to,
                            const std::vector<int64_t>& received) {
  return group.RunOn(*device_.queue,
                     collectives::AllToAllOf(
                         {from.data(), SumOf(sent), dtype_},
                         {to.data(), SumOf(received), dtype_}, sent, received));
}

absl::Status Muon::Run(zero3::MatrixShards& shards) {
  return AbortOnError(RunRounds(shards), {shard_, options_.tensor});
}

absl::Status Muon::RunRounds(zero3::MatrixShards& shards) {
  for (const Round& round : rounds_) {
    TESSERA_RETURN_IF_ERROR(RunRound(round, shards));
  }
  return absl::OkStatus();
}

absl::Status Muon::RunRound(const Round& round, zero3::MatrixShards& shards) {
  const Matrix* const own = MatrixOf(round, shard_rank_, tensor_rank_);
  if (tensor_ranks_ == 1) {
    TESSERA_RETURN_IF_ERROR(GatherParts(round, matrix_, shards));
    if (own == nullptr) return ScatterParts(round, matrix_, shards);
    TESSERA_ASSIGN_OR_RETURN(const TensorView update, Update(*own));
    return ScatterParts(
        round, {update.data(), update.dtype(), update.element_count()}, shards);
  }
  TESSERA_RETURN_IF_ERROR(GatherParts(round, parts_, shards));
  TESSERA_RETURN_IF_ERROR(GatherMatrix(round));
  if (own == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView none, ViewOf(matrix_, {0, 0}));
    TESSERA_RETURN_IF_ERROR(ScatterMatrix(round, none));
  } else {
    TESSERA_ASSIGN_OR_RETURN(const TensorView update, Update(*own));
    TESSERA_RETURN_IF_ERROR(ScatterMatrix(round, update));
  }
  return ScatterParts(round, parts_, shards);
}

absl::Status Muon::GatherParts(const Round& round,
                               const offload::TypedSpan& parts,
                               zero3::MatrixShards& shards) {
  int64_t received = 0;
  for (int64_t t = 0; t < tensor_ranks_; ++t) {
    const Counts counts = ShardCounts(round, t);
    if (!counts.any) continue;
    const offload::TypedSpan target = From(parts, received);
    const offload::TypedSpan& pieces = shard_ranks_ > 1 ? pieces_ : target;
    int64_t at = 0;
    for (int64_t s = 0; s < shard_ranks_; ++s) {
      const Matrix* const matrix = MatrixOf(round, s, t);
      if (matrix == nullptr) continue;
      const Piece piece = PieceOf(*matrix, shard_rank_);
      if (piece.size == 0) continue;
      TESSERA_RETURN_IF_ERROR(shards.WriteDirection(
          matrix->id, piece.begin, {pieces.At(at), dtype_, piece.size}));
      at += piece.size;
    }
    if (shard_ranks_ > 1) {
      TESSERA_RETURN_IF_ERROR(
          Exchange(*shard_, pieces, counts.sent, target, counts.received));
    }
    received += SumOf(counts.received);
  }
  return absl::OkStatus();
}

absl::Status Muon::ScatterParts(const Round& round,
                                const offload::TypedSpan& parts,
                                zero3::MatrixShards& shards) {
  int64_t sent = 0;
  for (int64_t t = 0; t < tensor_ranks_; ++t) {
    const Counts counts = ShardCounts(round, t);
    if (!counts.any) continue;
    const offload::TypedSpan source = From(parts, sent);
    const offload::TypedSpan& pieces = shard_ranks_ > 1 ? pieces_ : source;
    if (shard_ranks_ > 1) {
      TESSERA_RETURN_IF_ERROR(
          Exchange(*shard_, source, counts.received, pieces, counts.sent));
    }
    int64_t at = 0;
    for (int64_t s = 0; s < shard_ranks_; ++s) {
      const Matrix* const matrix = MatrixOf(round, s, t);
      if (matrix == nullptr) continue;
      const Piece piece = PieceOf(*matrix, shard_rank_);
      if (piece.size == 0) continue;
      TESSERA_RETURN_IF_ERROR(shards.Apply(
          matrix->id, piece.begin, {pieces.At(at), dtype_, piece.size}));
      at += piece.size;
    }
    sent += SumOf(counts.received);
  }
  return absl::OkStatus();
}

absl::Status Muon::CopyParts(const Matrix& matrix,
                             const offload::TypedSpan& packed,
                             const TensorView& whole, bool to_whole) {
  const MatrixPart& all = matrix.place.whole;
  int64_t at = 0;
  for (const MatrixPart& part : matrix.place.parts) {
    if (part.elements() == 0) continue;
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView piece,
        ViewOf(From(packed, at), {part.rows.size(), part.columns.size()}));
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView rows,
        whole.Narrow(0, part.rows.begin - all.rows.begin, part.rows.size()));
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView place,
        rows.Narrow(1, part.columns.begin, part.columns.size()));
    TESSERA_RETURN_IF_ERROR(
        to_whole ? options_.ops->Run(tensor_parallel::op::Copy{piece, place})
                 : options_.ops->Run(tensor_parallel::op::Copy{place, piece}));
    at += part.elements();
  }
  return absl::OkStatus();
}

absl::Status Muon::GatherMatrix(const Round& round) {
  const Counts counts = TensorCounts(round);
  if (!counts.any) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(
      Exchange(*options_.tensor, parts_, counts.sent, other_, counts.received));
  const Matrix* const own = MatrixOf(round, shard_rank_, tensor_rank_);
  if (own == nullptr) return absl::OkStatus();
  const MatrixPart& whole = own->place.whole;
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView matrix,
      ViewOf(matrix_, {whole.rows.size(), whole.columns.size()}));
  return CopyParts(*own, other_, matrix, /*to_whole=*/true);
}

absl::Status Muon::ScatterMatrix(const Round& round, const TensorView& update) {
  const Counts counts = TensorCounts(round);
  if (!counts.any) return absl::OkStatus();
  const offload::TypedSpan& packed =
      update.data() == matrix_.data() ? other_ : matrix_;
  if (const Matrix* own = MatrixOf(round, shard_rank_, tensor_rank_)) {
    TESSERA_RETURN_IF_ERROR(
        CopyParts(*own, packed, update, /*to_whole=*/false));
  }
  return Exchange(*options_.tensor, packed, counts.received, parts_,
                  counts.sent);
}

// The factor is negative because the direction is.
absl::StatusOr<TensorView> Muon::Update(const Matrix& matrix) {
  const int64_t rows = matrix.place.whole.rows.size();
  const int64_t columns = matrix.place.whole.columns.size();
  TESSERA_ASSIGN_OR_RETURN(const TensorView direction,
                           ViewOf(matrix_, {rows, columns}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView other,
                           ViewOf(other_, {rows, columns}));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView scratch,
      ViewOf(scratch_, {NewtonSchulzElements(rows, columns)}));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView update,
      Orthogonalise(*options_.ops, direction, other, scratch));
  const auto larger = static_cast<double>(std::max(rows, columns));
  TESSERA_RETURN_IF_ERROR(options_.ops->Run(
      tensor_parallel::op::Scale{-kUpdateScale * std::sqrt(larger), update}));
  return update;
}

}  // namespace tessera::train
