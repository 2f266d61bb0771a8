#include "collectives/host_memory/staged.h"

#include <algorithm>

#include "base/status_macros.h"
#include "collectives/host_memory/staged_move.h"

namespace tessera::collectives::direct {
namespace {

// all_reduce of a message that every rank combines for itself: one piece, one
// synchronisation.
absl::Status OneShotAllReduce(Call& call) {
  Window& window = call.means.window;
  const uint64_t piece = call.means.next_piece++;
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

// all_reduce and reduce in two shots.
class TwoShot {
 public:
  TwoShot(Call& call, bool collects)
      : call_(call),
        window_(call.means.window),
        collects_(collects),
        first_piece_(call.means.next_piece),
        piece_(window_.piece_bytes()),
        pieces_((call.bytes + piece_ - 1) / piece_) {
    call.means.next_piece += static_cast<uint64_t>(pieces_);
  }

  absl::Status Run() {
    // Three stages, each a piece behind the one before it.
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

  // All of it but the slice that this rank combines itself.
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

// Every piece has a part of each rank's block, which that rank combines.
class StagedReduceScatter {
 public:
  explicit StagedReduceScatter(Call& call)
      : call_(call),
        window_(call.means.window),
        blocks_(InputBlocks(call.operation, call.ranks)),
        part_(std::max<int64_t>(
            64,
            window_.PieceFor(blocks_.largest() * call.element * call.ranks) /
                call.ranks / 64 * 64)),
        first_piece_(call.means.next_piece),
        pieces_((blocks_.largest() * call.element + part_ - 1) / part_) {
    call.means.next_piece += static_cast<uint64_t>(pieces_);
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
  // What of a rank's block is in a piece.
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
      if (call.bytes <= call.means.group.tuning().one_shot_bytes) {
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

}  // namespace tessera::collectives::direct
