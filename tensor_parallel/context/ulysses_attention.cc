#include "tensor_parallel/context/ulysses_attention.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tensor_parallel/layers/parameter.h"

namespace tessera::tensor_parallel {

absl::StatusOr<HeadPartition> HeadPartition::Create(int64_t heads,
                                                    int64_t kv_heads,
                                                    int64_t ranks) {
  if (heads < 1 || kv_heads < 1 || ranks < 1 || heads % kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        heads, " heads, ", kv_heads, " of keys and values, over ", ranks,
        " ranks; give 1 or more of each, and a number of kv heads that divides "
        "the heads"));
  }
  TESSERA_ASSIGN_OR_RETURN(const Partition partition,
                           Partition::Balanced(heads, ranks));
  return HeadPartition(partition, heads / kv_heads);
}

std::vector<HeadRun> HeadPartition::RunsOf(int64_t rank) const {
  const int64_t group = heads_per_kv_head_;
  const IndexRange mine = HeadsOf(rank);
  // The range of whole kv heads. If all heads lie within one kv head, the
  // rounded begin exceeds the rounded end; min and max make the range empty.
  const int64_t whole_begin =
      std::min(mine.end, (mine.begin + group - 1) / group * group);
  const int64_t whole_end = std::max(whole_begin, mine.end / group * group);
  std::vector<HeadRun> runs;
  for (const IndexRange heads :
       {IndexRange{mine.begin, whole_begin}, IndexRange{whole_begin, whole_end},
        IndexRange{whole_end, mine.end}}) {
    if (heads.empty()) continue;
    runs.push_back(
        {heads, {heads.begin / group, (heads.end + group - 1) / group}});
  }
  return runs;
}

IndexRange HeadPartition::KvHeadsOf(int64_t rank) const {
  const IndexRange heads = HeadsOf(rank);
  if (heads.empty()) return {};
  return {heads.begin / heads_per_kv_head_,
          (heads.end - 1) / heads_per_kv_head_ + 1};
}

bool HeadPartition::shares_kv_heads() const {
  for (int64_t rank = 0; rank < ranks(); ++rank) {
    if (HeadsOf(rank).end % heads_per_kv_head_ != 0) return true;
  }
  return false;
}

namespace {

// Aligns pieces of every type so that they can be used in place.
constexpr int64_t kAlignment = 8;

std::vector<int64_t> RestOf(const ConstTensorView& by_position) {
  return {by_position.shape().begin() + 3, by_position.shape().end()};
}

// Copies the rows of a piece, which are contiguous there, into ranges of the
// whole.
absl::Status CopyIn(Ops& ops, ConstTensorView piece,
                    std::span<const IndexRange> ranges,
                    const TensorView& whole) {
  int64_t at = 0;
  for (const IndexRange& range : ranges) {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView from,
                             piece.Narrow(1, at, range.size()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                             whole.Narrow(1, range.begin, range.size()));
    TESSERA_RETURN_IF_ERROR(ops.Run(op::Copy{from, to}));
    at += range.size();
  }
  return absl::OkStatus();
}

absl::Status CopyOut(Ops& ops, const ConstTensorView& whole,
                     std::span<const IndexRange> ranges, TensorView piece) {
  int64_t at = 0;
  for (const IndexRange& range : ranges) {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView from,
                             whole.Narrow(1, range.begin, range.size()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                             piece.Narrow(1, at, range.size()));
    TESSERA_RETURN_IF_ERROR(ops.Run(op::Copy{from, to}));
    at += range.size();
  }
  return absl::OkStatus();
}

std::vector<ConstTensorView> ToConst(const std::vector<TensorView>& views) {
  return {views.begin(), views.end()};
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

// Adds the message with the elements in both one rank's positions and the
// other's heads; `peer` is the other of the two ranks.
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
      piece.shape = {shape.sequences, layout_.SizeOf(positions_of),
                     piece.heads.size()};
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

// The traffic of this rank's positions with the heads of each rank.
HeadExchange::Traffic HeadExchange::PositionSide(
    std::span<const Shape> shapes) const {
  Traffic traffic;
  for (int64_t rank = 0; rank < group_.size(); ++rank) {
    AddMessage(shapes, group_.rank(), rank, rank, traffic);
  }
  return traffic;
}

// The traffic of each rank's positions with the heads of this one.
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
      piece.dtype, piece.shape, messages.kind());
}

// Returns the elements that the ranks sent to this one.
absl::StatusOr<TensorView> HeadExchange::Exchange(const Traffic& out,
                                                  TensorView sent,
                                                  const Traffic& in) {
  if (group_.size() == 1) return sent;
  TESSERA_ASSIGN_OR_RETURN(TensorView received,
                           received_.Get(DType::kU8, {{in.bytes}}));
  TESSERA_RETURN_IF_ERROR(group_.communicator()->RunOn(
      group_.queue(),
      collectives::AllToAllOf(
          collectives::ConstBuffer(sent.data(), out.bytes, DType::kU8),
          collectives::Buffer(received.data(), in.bytes, DType::kU8),
          out.counts, in.counts)));
  return received;
}

absl::Status HeadExchange::ToHeads(std::span<const ToHeadsField> fields) {
  std::vector<Shape> shapes;
  for (const ToHeadsField& field : fields) {
    shapes.push_back({field.kind, field.by_position.dtype(),
                      field.by_position.shape()[0], RestOf(field.by_position)});
  }
  const Traffic out = PositionSide(shapes);
  TESSERA_ASSIGN_OR_RETURN(const TensorView sent,
                           sent_.Get(DType::kU8, {{out.bytes}}));
  for (const Piece& piece : out.pieces) {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView from,
                             fields[piece.field].by_position.Narrow(
                                 2, piece.heads.begin, piece.heads.size()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView to, ViewOf(sent, piece));
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Copy{from, to}));
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
      field.by_position.Narrow(2, piece.heads.begin, piece.heads.size()));
  return field.sum ? group_.ops().Run(op::Add{part, to})
                   : group_.ops().Run(op::Copy{part, to});
}

absl::Status HeadExchange::ToPositions(
    std::span<const ToPositionsField> fields) {
  std::vector<Shape> shapes;
  for (const ToPositionsField& field : fields) {
    shapes.push_back({field.kind, field.by_position.dtype(),
                      field.by_position.shape()[0], RestOf(field.by_position)});
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
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Fill{0, field.by_position}));
  }
  for (const Piece& piece : in.pieces) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView part, ViewOf(received, piece));
    TESSERA_RETURN_IF_ERROR(Keep(fields[piece.field], piece, part));
  }
  return absl::OkStatus();
}

absl::StatusOr<UlyssesAttention> UlyssesAttention::Create(
    const TensorGroup& group, const SequenceLayout& layout,
    const ContextAttentionOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const ContextAttentionOptions checked,
                           OperandShapes::CheckOptions(group, layout, options));
  TESSERA_ASSIGN_OR_RETURN(
      const HeadPartition heads,
      HeadPartition::Create(options.heads, options.kv_heads, group.size()));
  return UlyssesAttention(group, layout, checked, heads);
}

UlyssesAttention::UlyssesAttention(const TensorGroup& group,
                                   const SequenceLayout& layout,
                                   const ContextAttentionOptions& options,
                                   const HeadPartition& heads)
    : group_(group),
      layout_(layout),
      options_(options),
      heads_(heads),
      runs_(heads.RunsOf(group.rank())),
      exchange_(group, layout, heads) {}

DType UlyssesAttention::statistics() const {
  return GradientDType(options_.dtype);
}

OperandShapes UlyssesAttention::ShapesFor(const Inputs& inputs) const {
  return OperandShapes(group_.rank(), layout_.SizeOf(group_.rank()),
                       inputs.query, options_);
}

// Working memory by head, with the elements of each head or one number per
// head.
absl::StatusOr<UlyssesAttention::ByHead> UlyssesAttention::Get(
    ByHeadMemory& memory, HeadKind kind, DType dtype, int64_t sequences,
    bool has_elements) {
  while (memory.runs.size() < runs_.size()) {
    memory.runs.push_back(
        group_.Working(absl::StrCat(memory.name, " ", memory.runs.size())));
  }
  ByHead views;
  for (size_t run = 0; run < runs_.size(); ++run) {
    const IndexRange heads =
        kind == HeadKind::kQuery ? runs_[run].heads : runs_[run].kv_heads;
    std::vector<int64_t> shape = {sequences, layout_.length(), heads.size()};
    if (has_elements) shape.push_back(options_.head_size);
    TESSERA_ASSIGN_OR_RETURN(const TensorView view,
                             memory.runs[run].Get(dtype, shape));
    views.push_back(view);
  }
  return views;
}

std::vector<ContextAttention::FirstKeysTable>
UlyssesAttention::FirstKeysTables() const {
  std::vector<int64_t> positions(static_cast<size_t>(layout_.length()));
  std::iota(positions.begin(), positions.end(), 0);
  return {{positions, positions}};
}

absl::StatusOr<UlyssesAttention::Gathered> UlyssesAttention::GetInputs(
    const Inputs& inputs) {
  const int64_t sequences = inputs.query.shape()[0];
  std::optional<ConstTensorView> first_keys;
  if (inputs.first_keys.has_value()) {
    TESSERA_RETURN_IF_ERROR(
        ShapesFor(inputs).CheckFirstKeys(inputs, FirstKeysShape(sequences)));
    TESSERA_ASSIGN_OR_RETURN(first_keys, inputs.first_keys->Select(0, 0));
  }
  TESSERA_ASSIGN_OR_RETURN(
      ByHead query, Get(query_, HeadKind::kQuery, options_.dtype, sequences));
  TESSERA_ASSIGN_OR_RETURN(
      ByHead key, Get(key_, HeadKind::kKeyValue, options_.dtype, sequences));
  TESSERA_ASSIGN_OR_RETURN(ByHead value, Get(value_, HeadKind::kKeyValue,
                                             options_.dtype, sequences));
  return Gathered{std::move(query), std::move(key), std::move(value),
                  first_keys, inputs.max_scores};
}

AttentionBlock UlyssesAttention::BlockOf(const Gathered& gathered,
                                         size_t run) const {
  return {.query = gathered.query[run],
          .key = gathered.key[run],
          .value = gathered.value[run],
          .kind = options_.causal ? BlockKind::kCausal : BlockKind::kFull,
          .scale = *options_.scale,
          .first_keys = gathered.first_keys,
          .cap = options_.cap};
}

absl::Status UlyssesAttention::Attend(const Gathered& gathered,
                                      const ByHead& output,
                                      const ByHead& log_sum_exp) {
  Ops& ops = group_.ops();
  for (size_t run = 0; run < runs_.size(); ++run) {
    TESSERA_RETURN_IF_ERROR(ops.Run(op::Fill{0, output[run]}));
    TESSERA_RETURN_IF_ERROR(ops.Run(
        op::Fill{-std::numeric_limits<double>::infinity(), log_sum_exp[run]}));
    TESSERA_RETURN_IF_ERROR(ops.Run(
        op::Attend{BlockOf(gathered, run), {output[run], log_sum_exp[run]}}));
    if (!gathered.max_scores.has_value()) continue;
    const IndexRange heads = runs_[run].heads;
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView scores,
        gathered.max_scores->Narrow(0, heads.begin, heads.size()));
    TESSERA_RETURN_IF_ERROR(
        ops.Run(op::MaxScores{BlockOf(gathered, run), scores}));
  }
  return absl::OkStatus();
}

// Converts to the type of the inputs; returns the same memory if it has that
// type.
absl::StatusOr<UlyssesAttention::ByHead> UlyssesAttention::Narrowed(
    const ByHead& wide, ByHeadMemory& memory, HeadKind kind) {
  if (statistics() == options_.dtype || wide.empty()) return wide;
  TESSERA_ASSIGN_OR_RETURN(
      ByHead narrow, Get(memory, kind, options_.dtype, wide[0].shape()[0]));
  for (size_t run = 0; run < runs_.size(); ++run) {
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Cast{wide[run], narrow[run]}));
  }
  return narrow;
}

absl::Status UlyssesAttention::Forward(const Inputs& inputs, TensorView output,
                                       TensorView log_sum_exp) {
  TESSERA_RETURN_IF_ERROR(
      ShapesFor(inputs).CheckForward(inputs, output, log_sum_exp));
  const int64_t sequences = inputs.query.shape()[0];
  TESSERA_ASSIGN_OR_RETURN(const Gathered gathered, GetInputs(inputs));
  TESSERA_RETURN_IF_ERROR(exchange_.ToHeads(
      {{{HeadKind::kQuery, inputs.query, gathered.query},
        {HeadKind::kKeyValue, inputs.key, gathered.key},
        {HeadKind::kKeyValue, inputs.value, gathered.value}}}));
  TESSERA_ASSIGN_OR_RETURN(const ByHead wide, Get(output_, HeadKind::kQuery,
                                                  statistics(), sequences));
  TESSERA_ASSIGN_OR_RETURN(
      const ByHead statistic,
      Get(log_sum_exp_, HeadKind::kQuery, statistics(), sequences, false));
  TESSERA_RETURN_IF_ERROR(Attend(gathered, wide, statistic));
  TESSERA_ASSIGN_OR_RETURN(const ByHead narrow,
                           Narrowed(wide, narrow_output_, HeadKind::kQuery));
  return exchange_.ToPositions(
      {{{HeadKind::kQuery, ToConst(narrow), output},
        {HeadKind::kQuery, ToConst(statistic), log_sum_exp}}});
}

// The inverse of Narrowed.
absl::StatusOr<UlyssesAttention::ByHead> UlyssesAttention::Widened(
    const ByHead& narrow, ByHeadMemory& memory) {
  if (statistics() == options_.dtype || narrow.empty()) return narrow;
  TESSERA_ASSIGN_OR_RETURN(
      ByHead wide,
      Get(memory, HeadKind::kQuery, statistics(), narrow[0].shape()[0]));
  for (size_t run = 0; run < runs_.size(); ++run) {
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Cast{narrow[run], wide[run]}));
  }
  return wide;
}

// The memory for the sums of a gradient.
absl::StatusOr<TensorView> UlyssesAttention::SumOf(ReusableTensor& memory,
                                                   TensorView gradient) {
  if (!heads_.shares_kv_heads() || statistics() == options_.dtype) {
    return gradient;
  }
  return memory.Get(statistics(),
                    {gradient.shape().begin(), gradient.shape().end()});
}

absl::Status UlyssesAttention::ReturnGradients(const Gathered& wide,
                                               const Gradients& gradients) {
  // If ranks share kv heads, only the sum is rounded, once.
  const bool shares = heads_.shares_kv_heads();
  Gathered narrow = wide;
  TESSERA_ASSIGN_OR_RETURN(
      narrow.query, Narrowed(wide.query, narrow_query_, HeadKind::kQuery));
  if (!shares) {
    TESSERA_ASSIGN_OR_RETURN(
        narrow.key, Narrowed(wide.key, narrow_key_, HeadKind::kKeyValue));
    TESSERA_ASSIGN_OR_RETURN(
        narrow.value, Narrowed(wide.value, narrow_value_, HeadKind::kKeyValue));
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView key,
                           SumOf(key_sum_, gradients.key));
  TESSERA_ASSIGN_OR_RETURN(const TensorView value,
                           SumOf(value_sum_, gradients.value));
  TESSERA_RETURN_IF_ERROR(exchange_.ToPositions(
      {{{HeadKind::kQuery, ToConst(narrow.query), gradients.query},
        {HeadKind::kKeyValue, ToConst(narrow.key), key, shares},
        {HeadKind::kKeyValue, ToConst(narrow.value), value, shares}}}));
  if (key.dtype() == options_.dtype) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Cast{key, gradients.key}));
  return group_.ops().Run(op::Cast{value, gradients.value});
}

absl::Status UlyssesAttention::Backward(const Inputs& inputs,
                                        ConstTensorView output,
                                        ConstTensorView log_sum_exp,
                                        ConstTensorView output_gradient,
                                        const Gradients& gradients) {
  TESSERA_RETURN_IF_ERROR(ShapesFor(inputs).CheckBackward(
      inputs, output, log_sum_exp, output_gradient, gradients));
  const int64_t sequences = inputs.query.shape()[0];
  TESSERA_ASSIGN_OR_RETURN(const Gathered gathered, GetInputs(inputs));
  const auto get = [&](ByHeadMemory& memory, HeadKind kind, DType dtype,
                       bool has_elements = true) {
    return Get(memory, kind, dtype, sequences, has_elements);
  };
  TESSERA_ASSIGN_OR_RETURN(
      const ByHead narrow_output,
      get(statistics() == options_.dtype ? output_ : narrow_output_,
          HeadKind::kQuery, options_.dtype));
  TESSERA_ASSIGN_OR_RETURN(
      const ByHead gradient,
      get(output_gradient_, HeadKind::kQuery, options_.dtype));
  TESSERA_ASSIGN_OR_RETURN(
      const ByHead statistic,
      get(log_sum_exp_, HeadKind::kQuery, statistics(), false));
  TESSERA_RETURN_IF_ERROR(
      exchange_.ToHeads({{{HeadKind::kQuery, inputs.query, gathered.query},
                          {HeadKind::kKeyValue, inputs.key, gathered.key},
                          {HeadKind::kKeyValue, inputs.value, gathered.value},
                          {HeadKind::kQuery, output, narrow_output},
                          {HeadKind::kQuery, output_gradient, gradient},
                          {HeadKind::kQuery, log_sum_exp, statistic}}}));
  TESSERA_ASSIGN_OR_RETURN(const ByHead wide_output,
                           Widened(narrow_output, output_));
  TESSERA_ASSIGN_OR_RETURN(
      const Gathered wide,
      AttendGradients(sequences, gathered, wide_output, gradient, statistic));
  return ReturnGradients(wide, gradients);
}

// The gradients of this rank's heads, in the type of statistics.
absl::StatusOr<UlyssesAttention::Gathered> UlyssesAttention::AttendGradients(
    int64_t sequences, const Gathered& gathered, const ByHead& output,
    const ByHead& output_gradient, const ByHead& log_sum_exp) {
  TESSERA_ASSIGN_OR_RETURN(
      const ByHead delta,
      Get(delta_, HeadKind::kQuery, statistics(), sequences, false));
  Gathered wide;
  TESSERA_ASSIGN_OR_RETURN(wide.query, Get(query_gradient_, HeadKind::kQuery,
                                           statistics(), sequences, true));
  TESSERA_ASSIGN_OR_RETURN(wide.key, Get(key_gradient_, HeadKind::kKeyValue,
                                         statistics(), sequences, true));
  TESSERA_ASSIGN_OR_RETURN(wide.value, Get(value_gradient_, HeadKind::kKeyValue,
                                           statistics(), sequences, true));
  Ops& ops = group_.ops();
  for (size_t run = 0; run < runs_.size(); ++run) {
    for (const ByHead* of : {&wide.query, &wide.key, &wide.value}) {
      TESSERA_RETURN_IF_ERROR(ops.Run(op::Fill{0, (*of)[run]}));
    }
    TESSERA_RETURN_IF_ERROR(
        ops.Run(op::RowDots{output[run], output_gradient[run], delta[run]}));
    TESSERA_RETURN_IF_ERROR(ops.Run(op::AttendGradient{
        BlockOf(gathered, run),
        {output_gradient[run], output[run], log_sum_exp[run], delta[run],
         wide.query[run], wide.key[run], wide.value[run]}}));
  }
  return wide;
}

}  // namespace tessera::tensor_parallel
