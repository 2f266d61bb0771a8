#include "collectives/host_memory/staged.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::collectives::host_memory {

namespace {

// The first `bytes` bytes of the input.
std::span<const std::byte> InputOf(const Call& call, int64_t bytes) {
  return {call.input(), static_cast<size_t>(bytes)};
}

absl::Status WriteNote(Call& call, int64_t bytes) {
  return call.state.notes.Write(call.context, call.fingerprint,
                                InputOf(call, bytes));
}

absl::Status ExchangeNotes(Call& call, int64_t bytes) {
  return call.state.notes.Exchange(call.context, call.fingerprint,
                                   InputOf(call, bytes));
}

// Reduces elements [first, first + count) of all notes into `output`.
void CombineNotes(const Call& call, int64_t first, int64_t count,
                  std::byte* output) {
  Sources sources;
  for (int64_t rank = 0; rank < call.ranks; ++rank) {
    sources.push_back(call.state.notes.Of(rank) + first * call.element);
  }
  void* const destination[] = {output};
  Combine(call.whole, sources, destination, count);
}

absl::Status AllReduceNotes(Call& call) {
  TESSERA_RETURN_IF_ERROR(ExchangeNotes(call, call.bytes));
  CombineNotes(call, 0, call.operation.output.count, call.output());
  return absl::OkStatus();
}

absl::Status ReduceNotes(Call& call) {
  TESSERA_RETURN_IF_ERROR(WriteNote(call, call.bytes));
  if (!call.IsRoot()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(
      call.state.notes.AwaitAll(call.context, call.fingerprint));
  CombineNotes(call, 0, call.operation.output.count, call.output());
  return absl::OkStatus();
}

absl::Status ReduceScatterNotes(Call& call) {
  TESSERA_RETURN_IF_ERROR(ExchangeNotes(call, call.bytes));
  const Blocks blocks = InputBlocks(call.operation, call.ranks);
  CombineNotes(call, blocks.offset(call.me), blocks.count(call.me),
               call.output());
  return absl::OkStatus();
}

// all_gather and gather.
absl::Status GatherNotes(Call& call) {
  const int64_t bytes = call.operation.input.bytes();
  if (call.operation.kind == OpKind::kAllGather) {
    TESSERA_RETURN_IF_ERROR(ExchangeNotes(call, bytes));
  } else {
    TESSERA_RETURN_IF_ERROR(WriteNote(call, bytes));
    if (!call.IsRoot()) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(
        call.state.notes.AwaitAll(call.context, call.fingerprint));
  }
  const Blocks blocks = OutputBlocks(call.operation, call.ranks);
  for (int64_t rank = 0; rank < call.ranks; ++rank) {
    CopyBytes(call.output() + blocks.offset(rank) * call.element,
              call.state.notes.Of(rank), blocks.count(rank) * call.element);
  }
  return absl::OkStatus();
}

// broadcast and scatter.
absl::Status SpreadNotes(Call& call) {
  const bool scatters = call.operation.kind == OpKind::kScatter;
  const int64_t mine = call.operation.output.bytes();
  const int64_t offset = scatters ? call.me * mine : 0;
  if (call.IsRoot()) {
    TESSERA_RETURN_IF_ERROR(WriteNote(call, call.bytes));
    Move(call.output(), call.input() + offset, mine);
    return absl::OkStatus();
  }
  const int64_t root = call.operation.root.value();
  TESSERA_RETURN_IF_ERROR(
      call.state.notes.Await(call.context, call.fingerprint, root));
  CopyBytes(call.output(), call.state.notes.Of(root) + offset, mine);
  return absl::OkStatus();
}

absl::Status AllToAllNotes(Call& call) {
  TESSERA_RETURN_IF_ERROR(ExchangeNotes(call, call.bytes));
  const int64_t block = call.bytes / call.ranks;
  for (int64_t rank = 0; rank < call.ranks; ++rank) {
    CopyBytes(call.output() + rank * block,
              call.state.notes.Of(rank) + call.me * block, block);
  }
  return absl::OkStatus();
}

absl::Status BarrierNotes(Call& call) { return ExchangeNotes(call, 0); }

absl::Status Dispatch(Call& call) {
  switch (call.operation.kind) {
    case OpKind::kAllReduce:
      return AllReduceNotes(call);
    case OpKind::kReduce:
      return ReduceNotes(call);
    case OpKind::kReduceScatter:
      return ReduceScatterNotes(call);
    case OpKind::kAllGather:
    case OpKind::kGather:
      return GatherNotes(call);
    case OpKind::kBroadcast:
    case OpKind::kScatter:
      return SpreadNotes(call);
    case OpKind::kAllToAll:
      return AllToAllNotes(call);
    default:
      return BarrierNotes(call);
  }
}

}  // namespace

bool FitsNotes(const Call& call) {
  const bool gathers = call.operation.kind == OpKind::kAllGather ||
                       call.operation.kind == OpKind::kGather;
  if (!gathers) return call.bytes <= kNoteBytes;
  return OutputBlocks(call.operation, call.ranks).largest() * call.element <=
         kNoteBytes;
}

absl::Status RunByNotes(Call& call) {
  TESSERA_RETURN_IF_ERROR(Dispatch(call));
  call.state.notes.FinishRound();
  return absl::OkStatus();
}

namespace {

// Bytes [first, last) of a stream, which this rank copies to `to`.
struct Segment {
  ByteRange range;
  std::byte* to = nullptr;
};

// A contiguous part of this rank's stream.
using Run = std::span<const std::byte>;

struct Plan {
  explicit Plan(int64_t ranks)
      : lengths(static_cast<size_t>(ranks)),
        segments(static_cast<size_t>(ranks)) {}

  std::vector<Run> mine;
  // The part that this rank copies locally, from `from` to `to`.
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  int64_t bytes = 0;
  std::vector<int64_t> lengths;   // Length of each rank's stream.
  std::vector<Segment> segments;  // What this rank copies from each stream.
};

Run RunAt(const std::byte* data, int64_t bytes) {
  return {data, static_cast<size_t>(bytes)};
}

// Copies bytes [first, last) of a stream of runs to `to`.
void CopyFromRuns(std::span<const Run> runs, ByteRange range, std::byte* to) {
  int64_t start = 0;
  for (const Run& run : runs) {
    const int64_t end = start + static_cast<int64_t>(run.size());
    const int64_t first = std::max(start, range.first);
    const int64_t last = std::min(end, range.last);
    if (first < last) {
      CopyBytes(to + (first - range.first), run.data() + (first - start),
                last - first);
    }
    start = end;
  }
}

// Publishes this rank's stream and copies the segments.
class Mover {
 public:
  Mover(Call& call, const Plan& plan)
      : call_(call),
        plan_(plan),
        window_(call.state.window),
        first_piece_(call.state.next_piece),
        piece_(window_.PieceFor(Longest(plan))),
        pieces_((Longest(plan) + piece_ - 1) / piece_) {
    call.state.next_piece += static_cast<uint64_t>(pieces_);
  }

  absl::Status Run() {
    for (int64_t step = 0; step < pieces_ + 1; ++step) {
      if (step < pieces_) TESSERA_RETURN_IF_ERROR(Show(step));
      // Overlaps with the others' copy of the first piece.
      if (step == 0) Move(plan_.to, plan_.from, plan_.bytes);
      if (step >= 1) TESSERA_RETURN_IF_ERROR(Take(step - 1));
    }
    return absl::OkStatus();
  }

 private:
  static int64_t Longest(const Plan& plan) {
    return *std::max_element(plan.lengths.begin(), plan.lengths.end());
  }
  uint64_t Number(int64_t piece) const {
    return first_piece_ + static_cast<uint64_t>(piece);
  }
  // The bytes of a rank's stream that are in a piece.
  ByteRange PieceOf(int64_t rank, int64_t piece) const {
    const int64_t length = plan_.lengths[static_cast<size_t>(rank)];
    return {std::min(length, piece * piece_),
            std::min(length, (piece + 1) * piece_)};
  }

  absl::Status Show(int64_t piece) {
    const ByteRange range = PieceOf(call_.me, piece);
    if (range.empty()) return absl::OkStatus();
    call_.context.Enter(Phase::kSending);
    TESSERA_RETURN_IF_ERROR(window_.AwaitFree(call_.context, Number(piece)));
    CopyFromRuns(plan_.mine, range, window_.MyInput(Number(piece)));
    window_.ShowInput(Number(piece), call_.fingerprint);
    return absl::OkStatus();
  }

  absl::Status Take(int64_t piece) {
    for (int64_t i = 1; i < call_.ranks; ++i) {
      const int64_t peer = call_.PeerAt(i);
      const Segment& segment = plan_.segments[static_cast<size_t>(peer)];
      const ByteRange shown = PieceOf(peer, piece);
      const ByteRange wanted = {std::max(shown.first, segment.range.first),
                                std::min(shown.last, segment.range.last)};
      if (wanted.empty()) continue;
      call_.context.Enter(Phase::kReceiving, static_cast<uint32_t>(peer));
      TESSERA_RETURN_IF_ERROR(window_.AwaitInput(call_.context, Number(piece),
                                                 call_.fingerprint, peer));
      CopyBytes(
          segment.to + (wanted.first - segment.range.first),
          window_.InputOf(peer, Number(piece)) + (wanted.first - shown.first),
          wanted.length());
    }
    window_.Finish(Number(piece));
    return absl::OkStatus();
  }

  Call& call_;
  const Plan& plan_;
  Window& window_;
  const uint64_t first_piece_;
  const int64_t piece_;  // Bytes.
  const int64_t pieces_;
};

absl::Status MoveAlong(Call& call, const Plan& plan) {
  return Mover(call, plan).Run();
}

Plan PlanGather(const Call& call) {
  Plan plan(call.ranks);
  const Blocks blocks = OutputBlocks(call.operation, call.ranks);
  const bool takes = call.operation.kind == OpKind::kAllGather || call.IsRoot();
  for (int64_t rank = 0; rank < call.ranks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    plan.lengths[r] = blocks.count(rank) * call.element;
    if (!takes) continue;
    plan.segments[r] = {{0, plan.lengths[r]},
                        call.output() + blocks.offset(rank) * call.element};
  }
  plan.mine = {RunAt(call.input(), call.operation.input.bytes())};
  if (takes) {
    plan.to = plan.segments[static_cast<size_t>(call.me)].to;
    plan.from = call.input();
    plan.bytes = call.operation.input.bytes();
  }
  return plan;
}

Plan PlanSpread(const Call& call) {
  Plan plan(call.ranks);
  const auto root = static_cast<size_t>(call.operation.root.value());
  const int64_t mine = call.operation.output.bytes();
  const int64_t offset =
      call.operation.kind == OpKind::kScatter ? call.me * mine : 0;
  plan.lengths[root] = call.bytes;
  if (call.IsRoot()) {
    plan.mine = {RunAt(call.input(), call.bytes)};
    plan.to = call.output();
    plan.from = call.input() + offset;
    plan.bytes = mine;
  } else {
    plan.segments[root] = {{offset, offset + mine}, call.output()};
  }
  return plan;
}

// The number of bytes that every rank sends to every other rank; row r holds
// the counts that rank r sends.
class Matrix {
 public:
  explicit Matrix(int64_t ranks)
      : ranks_(ranks), bytes_(static_cast<size_t>(ranks * ranks)) {}
  int64_t& at(int64_t from, int64_t to) {
    return bytes_[static_cast<size_t>(from * ranks_ + to)];
  }
  int64_t* row(int64_t from) { return &at(from, 0); }

  int64_t SentBy(int64_t from) {
    return std::accumulate(row(from), row(from) + ranks_, int64_t{0});
  }
  // The offset of the block for `to` in the stream of `from`. A stream starts
  // with the block for the next rank, so that ranks do not all read from the
  // same peer.
  int64_t StartInStream(int64_t from, int64_t to) {
    int64_t start = 0;
    for (int64_t i = 1; (from + i) % ranks_ != to; ++i) {
      start += at(from, (from + i) % ranks_);
    }
    return start;
  }

 private:
  int64_t ranks_;
  std::vector<int64_t> bytes_;
};

Plan PlanAllToAll(const Call& call, Matrix& matrix, const std::byte* input) {
  Plan plan(call.ranks);
  const Blocks in = InputBlocks(call.operation, call.ranks);
  const Blocks out = OutputBlocks(call.operation, call.ranks);
  for (int64_t i = 1; i <= call.ranks; ++i) {
    const int64_t peer = call.PeerAt(i);
    plan.mine.push_back(RunAt(input + in.offset(peer) * call.element,
                              in.count(peer) * call.element));
  }
  for (int64_t rank = 0; rank < call.ranks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    plan.lengths[r] = matrix.SentBy(rank) - matrix.at(rank, rank);
    std::byte* const to = call.output() + out.offset(rank) * call.element;
    if (rank == call.me) {
      plan.to = to;
      plan.from = input + in.offset(rank) * call.element;
      plan.bytes = in.count(rank) * call.element;
      continue;
    }
    const int64_t start = matrix.StartInStream(rank, call.me);
    plan.segments[r] = {{start, start + matrix.at(rank, call.me)}, to};
  }
  return plan;
}

// Exchanges the counts of all ranks. Fails if a rank sends a different count
// than its receiver expects.
absl::Status ExchangeCounts(Call& call, Matrix& matrix) {
  Plan plan(call.ranks);
  for (int64_t to = 0; to < call.ranks; ++to) {
    matrix.at(call.me, to) =
        call.operation.counts[static_cast<size_t>(to)] * call.element;
  }
  const int64_t row = call.ranks * static_cast<int64_t>(sizeof(int64_t));
  for (int64_t rank = 0; rank < call.ranks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    plan.lengths[r] = row;
    plan.segments[r] = {{0, row},
                        reinterpret_cast<std::byte*>(matrix.row(rank))};
  }
  plan.mine = {
      RunAt(reinterpret_cast<const std::byte*>(matrix.row(call.me)), row)};
  TESSERA_RETURN_IF_ERROR(MoveAlong(call, plan));
  for (int64_t from = 0; from < call.ranks; ++from) {
    const int64_t expected =
        call.operation.receive_counts[static_cast<size_t>(from)];
    const int64_t sent = matrix.at(from, call.me) / call.element;
    if (sent == expected) continue;
    return call.state.group.Break(absl::FailedPreconditionError(absl::StrCat(
        "all_to_all: rank ", from, " sends ", sent, " elements to rank ",
        call.me, ", which expects ", expected)));
  }
  return absl::OkStatus();
}

absl::Status StagedAllToAll(Call& call) {
  Matrix matrix(call.ranks);
  if (call.operation.uneven()) {
    TESSERA_RETURN_IF_ERROR(ExchangeCounts(call, matrix));
  } else {
    const int64_t block = call.bytes / call.ranks;
    std::fill_n(matrix.row(0), call.ranks * call.ranks, block);
  }
  const std::byte* input = call.input();
  if (input == call.output() && call.bytes > 0) {
    // If in place, the input would be overwritten before it is published.
    TESSERA_ASSIGN_OR_RETURN(const auto copy,
                             call.context.AllocateScratch(call.bytes));
    CopyBytes(copy.data(), input, call.bytes);
    input = copy.data();
  }
  return MoveAlong(call, PlanAllToAll(call, matrix, input));
}

absl::Status RunStagedMove(Call& call) {
  switch (call.operation.kind) {
    case OpKind::kAllGather:
    case OpKind::kGather:
      return MoveAlong(call, PlanGather(call));
    case OpKind::kBroadcast:
    case OpKind::kScatter:
      return MoveAlong(call, PlanSpread(call));
    default:
      return StagedAllToAll(call);
  }
}

// all_reduce in one phase: every rank reduces the whole message itself; one
// piece, one synchronisation.
absl::Status OneShotAllReduce(Call& call) {
  Window& window = call.state.window;
  const uint64_t piece = call.state.next_piece++;
  TESSERA_RETURN_IF_ERROR(window.AwaitFree(call.context, piece));
  CopyBytes(window.MyInput(piece), call.input(), call.bytes);
  window.ShowInput(piece, call.fingerprint);
  Sources sources;
  for (int64_t rank = 0; rank < call.ranks; ++rank) {
    TESSERA_RETURN_IF_ERROR(
        window.AwaitInput(call.context, piece, call.fingerprint, rank));
    sources.push_back(window.InputOf(rank, piece));
  }
  void* const destination[] = {call.output()};
  Combine(call.whole, sources, destination, call.operation.output.count);
  window.Finish(piece);
  return absl::OkStatus();
}

// all_reduce and reduce in two phases.
class TwoShot {
 public:
  TwoShot(Call& call, bool collects)
      : call_(call),
        window_(call.state.window),
        collects_(collects),
        first_piece_(call.state.next_piece),
        piece_(window_.piece_bytes()),
        pieces_((call.bytes + piece_ - 1) / piece_) {
    call.state.next_piece += static_cast<uint64_t>(pieces_);
  }

  absl::Status Run() {
    // A pipeline of three stages, each one piece behind the previous.
    for (int64_t step = 0; step < pieces_ + 2; ++step) {
      if (step < pieces_) TESSERA_RETURN_IF_ERROR(Show(step));
      if (step >= 1 && step - 1 < pieces_) {
        TESSERA_RETURN_IF_ERROR(CombineSlice(step - 1));
      }
      if (step >= 2) TESSERA_RETURN_IF_ERROR(Collect(step - 2));
    }
    return absl::OkStatus();
  }

 private:
  uint64_t Number(int64_t piece) const {
    return first_piece_ + static_cast<uint64_t>(piece);
  }
  int64_t Start(int64_t piece) const { return piece * piece_; }
  int64_t Length(int64_t piece) const {
    return std::min(piece_, call_.bytes - Start(piece));
  }
  ByteRange SliceOf(int64_t rank, int64_t piece) const {
    return LineSlice(Length(piece), call_.ranks, rank);
  }

  // Publishes the input except for the slice that this rank reduces.
  absl::Status Show(int64_t piece) {
    call_.context.Enter(Phase::kEntering);
    TESSERA_RETURN_IF_ERROR(window_.AwaitFree(call_.context, Number(piece)));
    const ByteRange own = SliceOf(call_.me, piece);
    const std::byte* const input = call_.input() + Start(piece);
    std::byte* const shown = window_.MyInput(Number(piece));
    CopyBytes(shown, input, own.first);
    CopyBytes(shown + own.last, input + own.last, Length(piece) - own.last);
    window_.ShowInput(Number(piece), call_.fingerprint);
    return absl::OkStatus();
  }

  absl::Status CombineSlice(int64_t piece) {
    const ByteRange own = SliceOf(call_.me, piece);
    Sources sources;
    for (int64_t rank = 0; rank < call_.ranks; ++rank) {
      if (rank == call_.me) {
        sources.push_back(call_.input() + Start(piece) + own.first);
        continue;
      }
      TESSERA_RETURN_IF_ERROR(window_.AwaitInput(call_.context, Number(piece),
                                                 call_.fingerprint, rank));
      sources.push_back(window_.InputOf(rank, Number(piece)) + own.first);
    }
    call_.context.Enter(Phase::kReducing);
    Destinations destinations = {window_.MyResult(Number(piece)) + own.first};
    if (collects_) {
      destinations.push_back(call_.output() + Start(piece) + own.first);
    }
    Combine(call_.whole, sources, destinations, own.length() / call_.element);
    window_.ShowResult(Number(piece), call_.fingerprint);
    return absl::OkStatus();
  }

  absl::Status Collect(int64_t piece) {
    call_.context.Enter(Phase::kCopying);
    for (int64_t i = 1; i < call_.ranks && collects_; ++i) {
      const int64_t peer = call_.PeerAt(i);
      TESSERA_RETURN_IF_ERROR(window_.AwaitResult(call_.context, Number(piece),
                                                  call_.fingerprint, peer));
      const ByteRange slice = SliceOf(peer, piece);
      CopyBytes(call_.output() + Start(piece) + slice.first,
                window_.ResultOf(peer, Number(piece)) + slice.first,
                slice.length());
    }
    window_.Finish(Number(piece));
    return absl::OkStatus();
  }

  Call& call_;
  Window& window_;
  const bool collects_;
  const uint64_t first_piece_;
  const int64_t piece_;  // Bytes.
  const int64_t pieces_;
};

// Every piece holds a part of each rank's block, which that rank reduces.
class StagedReduceScatter {
 public:
  explicit StagedReduceScatter(Call& call)
      : call_(call),
        window_(call.state.window),
        blocks_(InputBlocks(call.operation, call.ranks)),
        part_(std::max<int64_t>(
            64,
            window_.PieceFor(blocks_.largest() * call.element * call.ranks) /
                call.ranks / 64 * 64)),
        first_piece_(call.state.next_piece),
        pieces_((blocks_.largest() * call.element + part_ - 1) / part_) {
    call.state.next_piece += static_cast<uint64_t>(pieces_);
  }

  absl::Status Run() {
    for (int64_t step = 0; step < pieces_ + 1; ++step) {
      if (step < pieces_) TESSERA_RETURN_IF_ERROR(Show(step));
      if (step >= 1) TESSERA_RETURN_IF_ERROR(CombineMine(step - 1));
    }
    return absl::OkStatus();
  }

 private:
  uint64_t Number(int64_t piece) const {
    return first_piece_ + static_cast<uint64_t>(piece);
  }
  // The part of a rank's block that is in a piece.
  ByteRange PartOf(int64_t rank, int64_t piece) const {
    const int64_t block = blocks_.count(rank) * call_.element;
    return {std::min(block, piece * part_),
            std::min(block, (piece + 1) * part_)};
  }

  absl::Status Show(int64_t piece) {
    TESSERA_RETURN_IF_ERROR(window_.AwaitFree(call_.context, Number(piece)));
    for (int64_t i = 1; i < call_.ranks; ++i) {
      const int64_t peer = call_.PeerAt(i);
      const ByteRange part = PartOf(peer, piece);
      CopyBytes(
          window_.MyInput(Number(piece)) + peer * part_,
          call_.input() + blocks_.offset(peer) * call_.element + part.first,
          part.length());
    }
    window_.ShowInput(Number(piece), call_.fingerprint);
    return absl::OkStatus();
  }

  absl::Status CombineMine(int64_t piece) {
    const ByteRange part = PartOf(call_.me, piece);
    const int64_t offset = blocks_.offset(call_.me) * call_.element;
    Sources sources;
    for (int64_t rank = 0; rank < call_.ranks; ++rank) {
      if (rank == call_.me) {
        sources.push_back(call_.input() + offset + part.first);
        continue;
      }
      TESSERA_RETURN_IF_ERROR(window_.AwaitInput(call_.context, Number(piece),
                                                 call_.fingerprint, rank));
      sources.push_back(window_.InputOf(rank, Number(piece)) +
                        call_.me * part_);
    }
    call_.context.Enter(Phase::kReducing);
    void* const destination[] = {call_.output() + part.first};
    Combine(call_.whole, sources, destination, part.length() / call_.element);
    window_.Finish(Number(piece));
    return absl::OkStatus();
  }

  Call& call_;
  Window& window_;
  const Blocks blocks_;
  const int64_t part_;  // Bytes of one rank's block in a piece.
  const uint64_t first_piece_;
  const int64_t pieces_;
};

}  // namespace

absl::Status RunStaged(Call& call) {
  switch (call.operation.kind) {
    case OpKind::kAllReduce:
      if (call.bytes <= call.state.group.tuning().one_shot_bytes) {
        return OneShotAllReduce(call);
      }
      return TwoShot(call, /*collects=*/true).Run();
    case OpKind::kReduce:
      return TwoShot(call, /*collects=*/call.IsRoot()).Run();
    case OpKind::kReduceScatter:
      return StagedReduceScatter(call).Run();
    default:
      return RunStagedMove(call);
  }
}

}  // namespace tessera::collectives::host_memory
