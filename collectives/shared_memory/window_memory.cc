#include "collectives/shared_memory/window_memory.h"

#include <algorithm>

#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/algorithms/exchange.h"
#include "collectives/host_memory/domain.h"
#include "collectives/options.h"
#include "collectives/record/flight_recorder.h"

namespace tessera::collectives {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kFaultAround = 64 << 10;

int64_t RoundUp(int64_t bytes, int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}
int64_t Pages(int64_t bytes) { return RoundUp(bytes, kPage); }

// The slots of a window are used in turn, so all of them are accessed.
class Touched {
 public:
  explicit Touched(const WindowUser& user) : user_(user) {}

  // A rank writes its input except its own slice, and its slice of the result.
  // It reads its slice of every input and all other slices of the result.
  int64_t AllReduce(int64_t bytes) const {
    if (bytes <= tuning().one_shot_bytes) {
      return ranks() * AllPlaces(Pages(bytes));
    }
    const int64_t piece = std::min(bytes, tuning().piece_bytes);
    const int64_t slice = piece / ranks();
    return AllPlaces(Pages(piece - slice) + ranks() * Pages(slice) +
                     InputsRead(piece));
  }

  int64_t ReduceScatter(int64_t bytes) const {
    const int64_t piece = std::min(Piece(bytes), bytes);
    return AllPlaces(Pages(piece - piece / ranks()) + InputsRead(piece));
  }

  // `streams` streams of `bytes` bytes each, written or read completely.
  int64_t Streams(int64_t streams, int64_t bytes) const {
    return streams * AllPlaces(Pages(std::min(Piece(bytes), bytes)));
  }

  // Ranks copy from each other without windows.
  bool CopiesFromPeers(int64_t bytes) const {
    return !user_.crowded && bytes >= std::max(tuning().peer_copy_bytes,
                                               tuning().zero_copy_bytes);
  }

 private:
  const Tuning& tuning() const { return user_.tuning; }
  int64_t ranks() const { return user_.ranks; }
  int64_t AllPlaces(int64_t bytes) const { return tuning().pieces * bytes; }

  // The other ranks' pieces, each without that rank's own slice.
  int64_t InputsRead(int64_t piece) const {
    const int64_t slice = piece / ranks();
    const int64_t first = user_.rank * slice / kFaultAround * kFaultAround;
    const int64_t last =
        std::min(piece, RoundUp((user_.rank + 1) * slice, kFaultAround));
    int64_t bytes = 0;
    for (int64_t peer = 0; peer < ranks(); ++peer) {
      if (peer == user_.rank) continue;
      const int64_t missing =
          std::max<int64_t>(0, std::min(last, (peer + 1) * slice) -
                                   std::max(first, peer * slice));
      bytes += Pages(last - first - missing);
    }
    return bytes;
  }

  // Equals Window::PieceFor.
  int64_t Piece(int64_t bytes) const {
    constexpr int64_t kPiecesOfMessage = 4;
    constexpr int64_t kLeast = 8 << 10;
    if (user_.crowded) return tuning().piece_bytes;
    return std::clamp(bytes / kPiecesOfMessage,
                      std::min(kLeast, tuning().piece_bytes),
                      tuning().piece_bytes);
  }

  const WindowUser& user_;
};

}  // namespace

int64_t WindowMemory(const WindowUser& user, OpKind kind, int64_t bytes) {
  if (user.ranks <= 1 || bytes <= 0) return 0;
  const Touched touched(user);
  switch (kind) {
    case OpKind::kBarrier:
      return 0;
    case OpKind::kSendReceive:
      return 2 * WindowMemory(user, OpKind::kSend, bytes);
    case OpKind::kSend:
    case OpKind::kReceive:
      return Pages(user.tuning.channel_bytes) + kPage;
    case OpKind::kAllReduce:
    case OpKind::kReduce:
      return touched.AllReduce(bytes);
    case OpKind::kReduceScatter:
      return touched.ReduceScatter(bytes);
    case OpKind::kAllGather:
    case OpKind::kGather:
      if (touched.CopiesFromPeers(bytes)) return 0;
      return touched.Streams(user.ranks, bytes / user.ranks);
    case OpKind::kAllToAll:
      if (touched.CopiesFromPeers(bytes)) return 0;
      return touched.Streams(2, bytes);
    case OpKind::kBroadcast:
    case OpKind::kScatter:
      if (touched.CopiesFromPeers(bytes)) return 0;
      return touched.Streams(1, bytes);
  }
  return 0;
}

int64_t ChannelMemory(const WindowUser& user, OpKind kind, int64_t bytes) {
  if (user.ranks <= 1 || bytes <= 0) return 0;
  const int64_t channels =
      2 * (user.ranks - 1) * WindowMemory(user, OpKind::kSend, bytes);
  if (!Reduces(kind)) return channels;
  return channels + OrderedLandingBytes(user.ranks, bytes / user.ranks, 1,
                                        AlgorithmOptions().chunk_bytes);
}

int64_t GroupMemory(int64_t ranks, bool is_world) {
  if (ranks <= 1) return 0;
  const int64_t slots =
      is_world ? host_memory::kWorldNoteSlots : host_memory::kGroupNoteSlots;
  return Pages(host_memory::GroupBlockBytes(ranks, slots)) +
         Pages(FlightRecorder::BytesFor(
             CommunicatorOptions().recorded_operations));
}

}  // namespace tessera::collectives
