// Window: the memory through which a rank shows the others pieces of buffers
// that they cannot reach.
//
// A window has Tuning::pieces places, each for one piece of a contribution and
// one of a result. Pieces are numbered on and on, the same on all ranks; a
// place is used again when every rank has said that it is done with it.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_WINDOW_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_WINDOW_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "collectives/host_memory/group.h"

namespace tessera::collectives::direct {

class Window {
 public:
  explicit Window(Group& group) : group_(group) {}
  // Gives the memory back once all ranks have left the group.
  ~Window();

  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  int64_t piece_bytes() const { return group_.tuning().piece_bytes; }

  // The bytes of a piece of a message of `bytes`: several pieces, so that ranks
  // that run at once write and read at once; where they take turns, as few as
  // can be, for each is a turn.
  int64_t PieceFor(int64_t bytes) const {
    constexpr int64_t kPiecesOfMessage = 4;
    constexpr int64_t kLeast = 8 << 10;
    if (group_.crowded()) return piece_bytes();
    return std::clamp(RoundToLine(bytes / kPiecesOfMessage),
                      std::min(kLeast, piece_bytes()), piece_bytes());
  }

  // This rank's place for contributions or results of piece `piece`, once all
  // ranks are done with what was there. Allocates the window at first.
  absl::Status AwaitFree(OperationContext& context, uint64_t piece);
  std::byte* MyInput(uint64_t piece) const { return memory_ + Offset(piece); }
  std::byte* MyResult(uint64_t piece) const {
    return memory_ + Offset(piece) + piece_bytes();
  }

  // Shows them to the others.
  void ShowInput(uint64_t piece, uint32_t fingerprint) {
    Show(group_.mine().staged, piece, fingerprint);
  }
  void ShowResult(uint64_t piece, uint32_t fingerprint) {
    Show(group_.mine().combined, piece, fingerprint);
  }

  // Another rank's, once it is shown.
  absl::Status AwaitInput(OperationContext& context, uint64_t piece,
                          uint32_t fingerprint, int64_t peer) {
    return AwaitFlag(context, &RankBlock::staged, piece, fingerprint, peer);
  }
  absl::Status AwaitResult(OperationContext& context, uint64_t piece,
                           uint32_t fingerprint, int64_t peer) {
    return AwaitFlag(context, &RankBlock::combined, piece, fingerprint, peer);
  }
  const std::byte* InputOf(int64_t peer, uint64_t piece) {
    return MemoryOf(peer) + Offset(piece);
  }
  const std::byte* ResultOf(int64_t peer, uint64_t piece) {
    return MemoryOf(peer) + Offset(piece) + piece_bytes();
  }

  // This rank is done with all pieces up to and including `piece`.
  void Finish(uint64_t piece) {
    group_.mine().pieces_done.value.store(piece + 1, std::memory_order_seq_cst);
    group_.Wake();
  }

 private:
  uint64_t Pieces() const {
    return static_cast<uint64_t>(group_.tuning().pieces);
  }
  int64_t Offset(uint64_t piece) const {
    return static_cast<int64_t>(piece % Pieces()) * 2 * piece_bytes();
  }
  absl::Status Allocate();
  void Show(PieceFlags& flags, uint64_t piece, uint32_t fingerprint);
  absl::Status AwaitFlag(OperationContext& context,
                         PieceFlags RankBlock::*flags, uint64_t piece,
                         uint32_t fingerprint, int64_t peer);
  const std::byte* MemoryOf(int64_t peer);

  Group& group_;
  std::byte* memory_ = nullptr;
  uint64_t safe_piece_ = 0;  // Places of pieces before this are free.
  std::vector<const std::byte*> peers_;
};

}  // namespace tessera::collectives::direct

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_WINDOW_H_
