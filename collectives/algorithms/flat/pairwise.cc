#include "collectives/algorithms/flat/pairwise.h"

#include <array>

#include "base/status_macros.h"
#include "collectives/algorithms/schedule/tournament.h"
#include "collectives/reduction/copy.h"

namespace tessera::collectives {
namespace {

// Steps that are under way together.
constexpr int64_t kWindow = 8;

// The messages of one step, and of those before it that are not complete.
class Window {
 public:
  std::span<Request> OfStep(int64_t step) {
    return std::span(requests_).subspan(
        static_cast<size_t>(2 * (step % kWindow)), 2);
  }
  absl::Status FinishAll(Party& party) { return party.Finish(requests_); }

 private:
  std::array<Request, 2 * kWindow> requests_ = {};
};

}  // namespace

absl::Status PairwiseAllToAll(Party party, const Blocks& in_blocks,
                              ConstVectorView input, const Blocks& out_blocks,
                              VectorView output) {
  const int64_t n = party.size();
  const int64_t me = party.rank();
  party.Enter(Phase::kCopying);
  CopyBytes(output.at(out_blocks.offset(me)), input.at(in_blocks.offset(me)),
            out_blocks.count(me) * output.element);
  Window window;
  for (int64_t round = 0; round < n; ++round) {
    party.Step(round + 1, n);
    const int64_t peer = TournamentPartner(n, me, round);
    const std::span<Request> requests = window.OfStep(round);
    TESSERA_RETURN_IF_ERROR(party.Finish(requests));
    if (peer == me) continue;
    TESSERA_ASSIGN_OR_RETURN(
        requests[0],
        party.Receive(peer, output.Range(out_blocks, peer, peer + 1)));
    TESSERA_ASSIGN_OR_RETURN(
        requests[1], party.Send(peer, input.Range(in_blocks, peer, peer + 1)));
  }
  return window.FinishAll(party);
}

absl::Status PairwiseSwap(Party party, int64_t count, VectorView data) {
  const int64_t n = party.size();
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> parked,
                           party.Scratch(count * data.element));
  for (int64_t round = 0; round < n; ++round) {
    party.Step(round + 1, n);
    const int64_t peer = TournamentPartner(n, party.rank(), round);
    if (peer == party.rank()) continue;
    const std::span<std::byte> block = data.Range(peer * count, count);
    CopyBytes(parked.data(), block.data(), count * data.element);
    TESSERA_RETURN_IF_ERROR(party.Exchange(peer, parked, peer, block));
  }
  return absl::OkStatus();
}

absl::Status PairwiseAllGather(Party party, const Blocks& blocks,
                               VectorView all) {
  const int64_t n = party.size();
  const int64_t me = party.rank();
  Window window;
  for (int64_t step = 1; step < n; ++step) {
    party.Step(step, n - 1);
    const std::span<Request> requests = window.OfStep(step);
    TESSERA_RETURN_IF_ERROR(party.Finish(requests));
    const int64_t to = (me + step) % n;
    const int64_t from = (me + n - step) % n;
    TESSERA_ASSIGN_OR_RETURN(
        requests[0], party.Receive(from, all.Range(blocks, from, from + 1)));
    TESSERA_ASSIGN_OR_RETURN(requests[1],
                             party.Send(to, all.Range(blocks, me, me + 1)));
  }
  return window.FinishAll(party);
}

absl::Status LinearGather(Party party, int64_t root, const Blocks& blocks,
                          ConstVectorView own, VectorView all) {
  const int64_t me = party.rank();
  if (me != root) return party.SendNow(root, own.Range(0, blocks.count(me)));
  TESSERA_ASSIGN_OR_RETURN(const std::span<Request> requests,
                           party.ScratchOf<Request>(party.size()));
  for (int64_t from = 0; from < party.size(); ++from) {
    if (from == root) continue;
    TESSERA_ASSIGN_OR_RETURN(
        requests[static_cast<size_t>(from)],
        party.Receive(from, all.Range(blocks, from, from + 1)));
  }
  std::byte* const place = all.at(blocks.offset(me));
  if (own.data != place) {
    CopyBytes(place, own.data, blocks.count(me) * all.element);
  }
  return party.Finish(requests);
}

absl::Status LinearScatter(Party party, int64_t root, const Blocks& blocks,
                           ConstVectorView all, VectorView own) {
  const int64_t me = party.rank();
  if (me != root) {
    return party.ReceiveNow(root, own.Range(0, blocks.count(me)));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::span<Request> requests,
                           party.ScratchOf<Request>(party.size()));
  for (int64_t to = 0; to < party.size(); ++to) {
    if (to == root) continue;
    TESSERA_ASSIGN_OR_RETURN(requests[static_cast<size_t>(to)],
                             party.Send(to, all.Range(blocks, to, to + 1)));
  }
  const std::byte* const place = all.at(blocks.offset(me));
  if (own.data != place) {
    CopyBytes(own.data, place, blocks.count(me) * all.element);
  }
  return party.Finish(requests);
}

}  // namespace tessera::collectives
