#include "tensor_parallel/context/head_exchange.h"

#include <utility>

#include "base/status_macros.h"

namespace tessera::tensor_parallel {
namespace {

// So that pieces of any type can be worked on where they are.
constexpr int64_t kAlignment = 8;

std::vector<int64_t> RestOf(const ConstTensorView& by_position) {
  return {by_position.shape().begin() + 2, by_position.shape().end()};
}

// Rows of a piece, which lie side by side there, and in ranges of the whole.
absl::Status CopyIn(Ops& ops, ConstTensorView piece,
                    std::span<const IndexRange> ranges,
                    const TensorView& whole) {
  int64_t at = 0;
  for (const IndexRange& range : ranges) {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView from,
                             piece.Narrow(0, at, range.size()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                             whole.Narrow(0, range.begin, range.size()));
    TESSERA_RETURN_IF_ERROR(ops.Copy(from, to));
    at += range.size();
  }
  return absl::OkStatus();
}

absl::Status CopyOut(Ops& ops, const ConstTensorView& whole,
                     std::span<const IndexRange> ranges, TensorView piece) {
  int64_t at = 0;
  for (const IndexRange& range : ranges) {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView from,
                             whole.Narrow(0, range.begin, range.size()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                             piece.Narrow(0, at, range.size()));
    TESSERA_RETURN_IF_ERROR(ops.Copy(from, to));
    at += range.size();
  }
  return absl::OkStatus();
}

}  // namespace

HeadExchange::HeadExchange(const TensorGroup& group,
                           const SequenceLayout& layout,
                           const HeadPartition& heads)
    : group_(group), layout_(layout) {
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    runs_.push_back(heads.RunsOf(rank));
  }
}

// What a rank's positions and another's heads have in common; `peer` is the one
// of the two that is not this rank.
void HeadExchange::AddMessage(std::span<const Shape> shapes,
                              int64_t positions_of, int64_t heads_of,
                              int64_t peer, Traffic& traffic) const {
  const int64_t begin = traffic.bytes;
  const std::vector<HeadRun>& runs = runs_[static_cast<size_t>(heads_of)];
  for (size_t run = 0; run < runs.size(); ++run) {
    for (size_t field = 0; field < shapes.size(); ++field) {
      const Shape& shape = shapes[field];
      Piece piece = {.peer = peer,
                     .run = run,
                     .field = field,
                     .offset = traffic.bytes,
                     .dtype = shape.dtype};
      piece.heads =
          shape.kind == HeadKind::kQuery ? runs[run].heads : runs[run].kv_heads;
      piece.shape = {layout_.SizeOf(positions_of), piece.heads.size()};
      piece.shape.insert(piece.shape.end(), shape.rest.begin(),
                         shape.rest.end());
      int64_t bytes = SizeInBytes(piece.dtype);
      for (const int64_t size : piece.shape) bytes *= size;
      traffic.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
      traffic.pieces.push_back(std::move(piece));
    }
  }
  traffic.counts.push_back(traffic.bytes - begin);
}

// Of this rank's positions, with the heads of each rank.
HeadExchange::Traffic HeadExchange::PositionSide(
    std::span<const Shape> shapes) const {
  Traffic traffic;
  for (int64_t rank = 0; rank < group_.size(); ++rank) {
    AddMessage(shapes, group_.rank(), rank, rank, traffic);
  }
  return traffic;
}

// Of each rank's positions, with the heads of this one.
HeadExchange::Traffic HeadExchange::HeadSide(
    std::span<const Shape> shapes) const {
  Traffic traffic;
  for (int64_t rank = 0; rank < group_.size(); ++rank) {
    AddMessage(shapes, rank, group_.rank(), rank, traffic);
  }
  return traffic;
}

absl::StatusOr<TensorView> HeadExchange::ViewOf(const TensorView& messages,
                                                const Piece& piece) {
  return TensorView::Create(
      {messages.data() + piece.offset,
       static_cast<size_t>(messages.element_count() - piece.offset)},
      piece.dtype, piece.shape);
}

// What the ranks have sent to this one.
absl::StatusOr<TensorView> HeadExchange::Exchange(const Traffic& out,
                                                  TensorView sent,
                                                  const Traffic& in) {
  if (group_.size() == 1) return sent;
  TESSERA_ASSIGN_OR_RETURN(TensorView received,
                           received_.Get(DType::kU8, {{in.bytes}}));
  TESSERA_RETURN_IF_ERROR(group_.communicator()->AllToAllUneven(
      collectives::ConstBuffer(sent.data(), out.bytes, DType::kU8), out.counts,
      collectives::Buffer(received.data(), in.bytes, DType::kU8), in.counts));
  return received;
}

absl::Status HeadExchange::ToHeads(std::span<const ToHeadsField> fields) {
  std::vector<Shape> shapes;
  for (const ToHeadsField& field : fields) {
    shapes.push_back(
        {field.kind, field.by_position.dtype(), RestOf(field.by_position)});
  }
  const Traffic out = PositionSide(shapes);
  TESSERA_ASSIGN_OR_RETURN(const TensorView sent,
                           sent_.Get(DType::kU8, {{out.bytes}}));
  for (const Piece& piece : out.pieces) {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView from,
                             fields[piece.field].by_position.Narrow(
                                 1, piece.heads.begin, piece.heads.size()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView to, ViewOf(sent, piece));
    TESSERA_RETURN_IF_ERROR(group_.ops().Copy(from, to));
  }
  const Traffic in = HeadSide(shapes);
  TESSERA_ASSIGN_OR_RETURN(const TensorView received, Exchange(out, sent, in));
  for (const Piece& piece : in.pieces) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView from, ViewOf(received, piece));
    TESSERA_RETURN_IF_ERROR(CopyIn(group_.ops(), from,
                                   layout_.RangesOf(piece.peer),
                                   fields[piece.field].by_head[piece.run]));
  }
  return absl::OkStatus();
}

absl::Status HeadExchange::Keep(const ToPositionsField& field,
                                const Piece& piece,
                                ConstTensorView part) const {
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView to,
      field.by_position.Narrow(1, piece.heads.begin, piece.heads.size()));
  return field.sum ? group_.ops().Add(part, to) : group_.ops().Copy(part, to);
}

absl::Status HeadExchange::ToPositions(
    std::span<const ToPositionsField> fields) {
  std::vector<Shape> shapes;
  for (const ToPositionsField& field : fields) {
    shapes.push_back(
        {field.kind, field.by_position.dtype(), RestOf(field.by_position)});
  }
  const Traffic out = HeadSide(shapes);
  TESSERA_ASSIGN_OR_RETURN(const TensorView sent,
                           sent_.Get(DType::kU8, {{out.bytes}}));
  for (const Piece& piece : out.pieces) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView to, ViewOf(sent, piece));
    TESSERA_RETURN_IF_ERROR(CopyOut(group_.ops(),
                                    fields[piece.field].by_head[piece.run],
                                    layout_.RangesOf(piece.peer), to));
  }
  const Traffic in = PositionSide(shapes);
  TESSERA_ASSIGN_OR_RETURN(const TensorView received, Exchange(out, sent, in));
  for (const ToPositionsField& field : fields) {
    if (!field.sum) continue;
    TESSERA_RETURN_IF_ERROR(group_.ops().Fill(0, field.by_position));
  }
  for (const Piece& piece : in.pieces) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView part, ViewOf(received, piece));
    TESSERA_RETURN_IF_ERROR(Keep(fields[piece.field], piece, part));
  }
  return absl::OkStatus();
}

}  // namespace tessera::tensor_parallel
