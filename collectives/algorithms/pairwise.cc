#include "collectives/algorithms/pairwise.h"

#include <array>

#include "base/status_macros.h"
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

// Sends outgoing(rank) to every other rank and receives incoming(rank).
template <typename Outgoing, typename Incoming>
absl::Status ExchangeWithAll(Party& party, const Outgoing& outgoing,
                             const Incoming& incoming) {
  const int64_t n = party.size();
  Window window;
  for (int64_t step = 1; step < n; ++step) {
    party.Step(step, n - 1);
    const std::span<Request> requests = window.OfStep(step);
    TESSERA_RETURN_IF_ERROR(party.Finish(requests));
    const int64_t to = (party.rank() + step) % n;
    const int64_t from = (party.rank() + n - step) % n;
    TESSERA_ASSIGN_OR_RETURN(requests[0], party.Receive(from, incoming(from)));
    TESSERA_ASSIGN_OR_RETURN(requests[1], party.Send(to, outgoing(to)));
  }
  return window.FinishAll(party);
}

}  // namespace

absl::Status PairwiseAllToAll(Party party, const Blocks& in_blocks,
                              ConstVectorView input, const Blocks& out_blocks,
                              VectorView output) {
  const int64_t me = party.rank();
  party.Enter(Phase::kCopying);
  CopyBytes(output.at(out_blocks.offset(me)), input.at(in_blocks.offset(me)),
            out_blocks.count(me) * output.element);
  return ExchangeWithAll(
      party, [&](int64_t to) { return input.Range(in_blocks, to, to + 1); },
      [&](int64_t from) { return output.Range(out_blocks, from, from + 1); });
}

absl::Status PairwiseAllGather(Party party, const Blocks& blocks,
                               VectorView all) {
  const int64_t me = party.rank();
  return ExchangeWithAll(
      party, [&](int64_t) { return all.Range(blocks, me, me + 1); },
      [&](int64_t from) { return all.Range(blocks, from, from + 1); });
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
