#include "collectives/host_memory/staged_move.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::collectives::direct {
namespace {

// What this rank takes from a stream: its bytes [first, last), to `to`.
struct Segment {
  ByteRange range;
  std::byte* to = nullptr;
};

// This rank's stream: runs of memory, one behind the other.
using Run = std::span<const std::byte>;

struct Plan {
  explicit Plan(int64_t ranks)
      : lengths(static_cast<size_t>(ranks)),
        segments(static_cast<size_t>(ranks)) {}

  std::vector<Run> mine;
  // What this rank keeps: bytes that it moves itself, `from` to `to`.
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  int64_t bytes = 0;
  std::vector<int64_t> lengths;   // Of every rank's stream.
  std::vector<Segment> segments;  // What this rank takes of each.
};

Run RunAt(const std::byte* data, int64_t bytes) {
  return {data, static_cast<size_t>(bytes)};
}

// Bytes [first, last) of a stream of runs.
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

// Shows this rank's stream and takes the segments.
class Mover {
 public:
  Mover(Call& call, const Plan& plan)
      : call_(call),
        plan_(plan),
        window_(call.means.window),
        first_piece_(call.means.next_piece),
        piece_(window_.PieceFor(Longest(plan))),
        pieces_((Longest(plan) + piece_ - 1) / piece_) {
    call.means.next_piece += static_cast<uint64_t>(pieces_);
  }

  absl::Status Run() {
    for (int64_t step = 0; step < pieces_ + 1; ++step) {
      if (step < pieces_) TESSERA_RETURN_IF_ERROR(Show(step));
      // While the others take the first piece.
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
  // What of a stream is in a piece.
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

// What every rank sends every other one: row r is what rank r sends, in bytes.
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
  // Where the block for `to` begins in the stream of `from`, which goes round
  // the ranks from the one after it, so that not all turn to the same one.
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

// Everybody hears what everybody sends; an error where it is not what the
// receiver expects.
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
    return call.means.group.Break(absl::FailedPreconditionError(absl::StrCat(
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
    // What is written over is still to be shown.
    TESSERA_ASSIGN_OR_RETURN(const auto copy,
                             call.context.AllocateScratch(call.bytes));
    CopyBytes(copy.data(), input, call.bytes);
    input = copy.data();
  }
  return MoveAlong(call, PlanAllToAll(call, matrix, input));
}

}  // namespace

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

}  // namespace tessera::collectives::direct
