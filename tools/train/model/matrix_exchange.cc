#include "tools/train/model/matrix_exchange.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/operation/operation.h"

namespace tessera::train {

namespace {

namespace tp = tensor_parallel;

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

absl::StatusOr<std::vector<StateMatrix>> MatricesIn(
    std::span<tp::Parameter* const> parameters,
    const MatrixUpdateOptions& options) {
  MatrixRanks ranks;
  if (options.tensor != nullptr) {
    ranks.tensor_rank = options.tensor->rank().value();
    ranks.tensor_ranks = options.tensor->size();
  }
  if (options.experts != nullptr) {
    ranks.expert_rank = options.experts->rank().value();
    ranks.expert_ranks = options.experts->size();
  }
  std::vector<StateMatrix> matrices;
  for (size_t i = 0; i < parameters.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(
        std::vector<HiddenMatrix> places,
        HiddenMatricesOf(*parameters[i], options.model, ranks));
    for (HiddenMatrix& place : places) {
      if (place.whole.elements() == 0) continue;
      matrices.push_back({zero3::ParameterId(static_cast<int64_t>(i)),
                          std::move(place),
                          tp::GradientDType(parameters[i]->dtype())});
    }
  }
  return matrices;
}

int64_t WorkOf(const StateMatrix& matrix) {
  const MatrixPart& whole = matrix.place.whole;
  return whole.elements() * std::min(whole.rows.size(), whole.columns.size());
}

MatrixExchange::MatrixExchange(std::vector<StateMatrix> matrices,
                               const zero3::StateLayout& layout,
                               collectives::Communicator* shard,
                               const zero3::StateDevice& device,
                               const MatrixUpdateOptions& ranks)
    : matrices_(std::move(matrices)),
      layout_(layout),
      shard_(shard),
      device_(device),
      ranks_(ranks),
      dtype_(matrices_.empty() ? DType::kF32 : matrices_[0].dtype) {
  if (shard != nullptr) {
    shard_ranks_ = shard->size();
    shard_rank_ = shard->rank().value();
  }
  if (ranks.tensor != nullptr) {
    tensor_ranks_ = ranks.tensor->size();
    tensor_rank_ = ranks.tensor->rank().value();
  }
  own_ = shard_rank_ * tensor_ranks_ + tensor_rank_;
}

absl::StatusOr<std::unique_ptr<MatrixExchange>> MatrixExchange::Create(
    std::vector<StateMatrix> matrices, std::span<const int64_t> owners,
    const zero3::StateLayout& layout, collectives::Communicator* shard,
    const zero3::StateDevice& device, const MatrixUpdateOptions& ranks,
    const Options& options) {
  std::unique_ptr<MatrixExchange> exchange(
      new MatrixExchange(std::move(matrices), layout, shard, device, ranks));
  exchange->PlanRounds(owners);
  TESSERA_RETURN_IF_ERROR(exchange->Allocate(options));
  return exchange;
}

// The largest matrices first, so that the matrices of a round have similar
// sizes.
void MatrixExchange::PlanRounds(std::span<const int64_t> owners) {
  std::vector<size_t> order(matrices_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return WorkOf(matrices_[a]) > WorkOf(matrices_[b]);
  });
  std::vector<size_t> taken(static_cast<size_t>(shard_ranks_ * tensor_ranks_));
  for (const size_t matrix : order) {
    const auto owner = static_cast<size_t>(owners[matrix]);
    const size_t round = taken[owner]++;
    if (round == rounds_.size()) rounds_.emplace_back(taken.size());
    rounds_[round][owner] = matrix;
  }
}

absl::Status MatrixExchange::Allocate(const Options& options) {
  int64_t pieces = 0, parts = 0, matrix = 0, scratch = 0;
  for (const Round& round : rounds_) {
    for (int64_t t = 0; shard_ranks_ > 1 && t < tensor_ranks_; ++t) {
      pieces = std::max(pieces, SumOf(ShardCounts(round, t).sent));
    }
    if (tensor_ranks_ > 1) {
      parts = std::max(parts, SumOf(TensorCounts(round).sent));
    }
    const StateMatrix* const own = MatrixOf(round, shard_rank_, tensor_rank_);
    if (own == nullptr) continue;
    const MatrixPart& whole = own->place.whole;
    matrix = std::max({matrix, whole.elements(), PackedElements(own->place)});
    scratch = std::max(scratch, options.scratch(whole));
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
  TESSERA_ASSIGN_OR_RETURN(
      memory_, zero3::AccountedMemory::Allocate(
                   device_, absl::StrCat("matrices of ", options.name), bytes,
                   offload::Purpose::kBuffers));
  for (const Use& use : uses) {
    use.span = {memory_.bytes().data() + use.begin, dtype_, use.elements};
  }
  return absl::OkStatus();
}

const StateMatrix* MatrixExchange::MatrixOf(const Round& round,
                                            int64_t shard_rank,
                                            int64_t tensor_rank) const {
  const auto owner =
      static_cast<size_t>(shard_rank * tensor_ranks_ + tensor_rank);
  return round[owner].has_value() ? &matrices_[*round[owner]] : nullptr;
}

const MatrixPart& MatrixExchange::OwnPart(const StateMatrix& matrix) const {
  return matrix.place.parts[static_cast<size_t>(tensor_rank_)];
}

MatrixExchange::Piece MatrixExchange::PieceOf(const StateMatrix& matrix,
                                              int64_t shard_rank) const {
  const zero3::Extent extent =
      layout_.ExtentOf(topology::Rank(shard_rank), matrix.id);
  const int64_t first = matrix.place.begin;
  const int64_t begin = std::max(extent.begin, first);
  const int64_t end = std::min(extent.end, first + OwnPart(matrix).elements());
  return {begin, std::max<int64_t>(end - begin, 0)};
}

MatrixExchange::Counts MatrixExchange::ShardCounts(const Round& round,
                                                   int64_t tensor_rank) const {
  Counts counts;
  const StateMatrix* const own = MatrixOf(round, shard_rank_, tensor_rank);
  for (int64_t s = 0; s < shard_ranks_; ++s) {
    const StateMatrix* const matrix = MatrixOf(round, s, tensor_rank);
    counts.sent.push_back(
        matrix == nullptr ? 0 : PieceOf(*matrix, shard_rank_).size);
    counts.received.push_back(own == nullptr ? 0 : PieceOf(*own, s).size);
    counts.any |= matrix != nullptr;
  }
  return counts;
}

MatrixExchange::Counts MatrixExchange::TensorCounts(const Round& round) const {
  Counts counts;
  const StateMatrix* const own = MatrixOf(round, shard_rank_, tensor_rank_);
  for (int64_t t = 0; t < tensor_ranks_; ++t) {
    const StateMatrix* const matrix = MatrixOf(round, shard_rank_, t);
    counts.sent.push_back(matrix == nullptr ? 0 : OwnPart(*matrix).elements());
    counts.received.push_back(
        own == nullptr ? 0
                       : own->place.parts[static_cast<size_t>(t)].elements());
    counts.any |= matrix != nullptr;
  }
  return counts;
}

absl::StatusOr<TensorView> MatrixExchange::ViewOf(
    const offload::TypedSpan& memory,
    std::initializer_list<int64_t> shape) const {
  return TensorView::Create(
      {memory.data(), static_cast<size_t>(memory.size_in_bytes())},
      memory.dtype(), shape, device_.memory->kind());
}

absl::StatusOr<TensorView> MatrixExchange::OwnView(
    const Round& round, const offload::TypedSpan& memory) const {
  const StateMatrix* const own = MatrixOf(round, shard_rank_, tensor_rank_);
  if (own == nullptr) return ViewOf(memory, {0, 0});
  const MatrixPart& whole = own->place.whole;
  return ViewOf(memory, {whole.rows.size(), whole.columns.size()});
}

absl::StatusOr<TensorView> MatrixExchange::OtherOf(size_t round) const {
  return OwnView(rounds_[round], other_);
}

absl::StatusOr<TensorView> MatrixExchange::Scratch() const {
  return ViewOf(scratch_, {scratch_.size()});
}

absl::Status MatrixExchange::AbortOnError(const absl::Status& status) const {
  return train::AbortOnError(status, {shard_, ranks_.tensor});
}

absl::Status MatrixExchange::Exchange(collectives::Communicator& group,
                                      const offload::TypedSpan& from,
                                      const std::vector<int64_t>& sent,
                                      const offload::TypedSpan& to,
                                      const std::vector<int64_t>& received) {
  return group.RunOn(*device_.queue,
                     collectives::AllToAllOf(
                         {from.data(), SumOf(sent), dtype_},
                         {to.data(), SumOf(received), dtype_}, sent, received));
}

absl::StatusOr<TensorView> MatrixExchange::Gather(size_t round,
                                                  Elements write) {
  const Round& now = rounds_[round];
  TESSERA_RETURN_IF_ERROR(
      GatherParts(now, tensor_ranks_ > 1 ? parts_ : matrix_, write));
  if (tensor_ranks_ > 1) TESSERA_RETURN_IF_ERROR(GatherMatrix(now));
  return OwnView(now, matrix_);
}

absl::Status MatrixExchange::Scatter(size_t round, const TensorView& update,
                                     Elements apply) {
  const Round& now = rounds_[round];
  if (tensor_ranks_ > 1) {
    TESSERA_RETURN_IF_ERROR(ScatterMatrix(now, update));
    return ScatterParts(now, parts_, apply);
  }
  return ScatterParts(now, update.data() == matrix_.data() ? matrix_ : other_,
                      apply);
}

absl::Status MatrixExchange::ForPieces(const Round& round, int64_t tensor_rank,
                                       const offload::TypedSpan& pieces,
                                       Elements work) const {
  int64_t at = 0;
  for (int64_t s = 0; s < shard_ranks_; ++s) {
    const StateMatrix* const matrix = MatrixOf(round, s, tensor_rank);
    if (matrix == nullptr) continue;
    const Piece piece = PieceOf(*matrix, shard_rank_);
    if (piece.size == 0) continue;
    TESSERA_RETURN_IF_ERROR(
        work(matrix->id, piece.begin, {pieces.At(at), dtype_, piece.size}));
    at += piece.size;
  }
  return absl::OkStatus();
}

absl::Status MatrixExchange::GatherParts(const Round& round,
                                         const offload::TypedSpan& parts,
                                         Elements write) {
  int64_t received = 0;
  for (int64_t t = 0; t < tensor_ranks_; ++t) {
    const Counts counts = ShardCounts(round, t);
    if (!counts.any) continue;
    const offload::TypedSpan target = From(parts, received);
    const offload::TypedSpan& pieces = shard_ranks_ > 1 ? pieces_ : target;
    TESSERA_RETURN_IF_ERROR(ForPieces(round, t, pieces, write));
    if (shard_ranks_ > 1) {
      TESSERA_RETURN_IF_ERROR(
          Exchange(*shard_, pieces, counts.sent, target, counts.received));
    }
    received += SumOf(counts.received);
  }
  return absl::OkStatus();
}

absl::Status MatrixExchange::ScatterParts(const Round& round,
                                          const offload::TypedSpan& parts,
                                          Elements apply) {
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
    TESSERA_RETURN_IF_ERROR(ForPieces(round, t, pieces, apply));
    sent += SumOf(counts.received);
  }
  return absl::OkStatus();
}

absl::Status MatrixExchange::CopyParts(const StateMatrix& matrix,
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
    TESSERA_RETURN_IF_ERROR(to_whole
                                ? ranks_.ops->Run(tp::op::Copy{piece, place})
                                : ranks_.ops->Run(tp::op::Copy{place, piece}));
    at += part.elements();
  }
  return absl::OkStatus();
}

absl::Status MatrixExchange::GatherMatrix(const Round& round) {
  const Counts counts = TensorCounts(round);
  if (!counts.any) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(
      Exchange(*ranks_.tensor, parts_, counts.sent, other_, counts.received));
  const StateMatrix* const own = MatrixOf(round, shard_rank_, tensor_rank_);
  if (own == nullptr) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const TensorView matrix, OwnView(round, matrix_));
  return CopyParts(*own, other_, matrix, /*to_whole=*/true);
}

absl::Status MatrixExchange::ScatterMatrix(const Round& round,
                                           const TensorView& update) {
  const Counts counts = TensorCounts(round);
  if (!counts.any) return absl::OkStatus();
  const offload::TypedSpan& packed =
      update.data() == matrix_.data() ? other_ : matrix_;
  if (const StateMatrix* own = MatrixOf(round, shard_rank_, tensor_rank_)) {
    TESSERA_RETURN_IF_ERROR(
        CopyParts(*own, packed, update, /*to_whole=*/false));
  }
  return Exchange(*ranks_.tensor, packed, counts.received, parts_, counts.sent);
}

}  // namespace tessera::train
