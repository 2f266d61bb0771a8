#include "collectives/algorithms/tree_lane.h"

#include <algorithm>

#include "base/status_macros.h"

namespace tessera::collectives {

TreeLane::TreeLane(const TreeTask& task, const TreeFlow& flow,
                   const TreePlace& place, int64_t first, int64_t count)
    : flow_(flow),
      place_(place),
      chunks_(count, task.chunk),
      reducer_(task.reducer),
      input_(task.input.From(first)),
      output_(task.output.From(first)),
      source_(is_root() && !flow.up ? input_ : ConstVectorView(output_)) {}

absl::Status TreeLane::Prepare(Party& party) {
  TESSERA_ASSIGN_OR_RETURN(to_children_,
                           party.ScratchOf<Request>(2 * children()));
  if (!flow_.up) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(from_children_,
                           party.ScratchOf<Request>(kSlots * children()));
  TESSERA_ASSIGN_OR_RETURN(sources_,
                           party.ScratchOf<const void*>(children() + 1));
  const int64_t slots = children() * std::min(kSlots, chunks_.count());
  TESSERA_ASSIGN_OR_RETURN(
      const std::span<std::byte> memory,
      party.Scratch(slots * chunks_.longest() * reducer_.element()));
  slots_ = {memory.data(), reducer_.element()};
  return absl::OkStatus();
}

absl::Status TreeLane::PostUp(Party& party, int64_t time) {
  const int64_t k = time - flow_.UpTime(place_.depth);
  if (!flow_.up || !Has(k) || children() == 0) return absl::OkStatus();
  // The first landing place held chunk k - kSlots on its way to the parent.
  TESSERA_RETURN_IF_ERROR(party.Finish(to_parent_[k % kSlots]));
  const std::span<Request> receives = OfChunk(from_children_, k % kSlots);
  for (int64_t c = 0; c < children(); ++c) {
    TESSERA_ASSIGN_OR_RETURN(
        receives[static_cast<size_t>(c)],
        party.Receive(place_.children()[static_cast<size_t>(c)],
                      Landing(c, k).Range(0, chunks_.length(k))));
  }
  return absl::OkStatus();
}

absl::Status TreeLane::PostDown(Party& party, int64_t time) {
  const int64_t k = time - flow_.DownTime(place_.depth);
  if (!flow_.down || !Has(k) || is_root()) return absl::OkStatus();
  // In place, the chunk that comes down lands where the one that went up was
  // read.
  if (k >= sent_up_ - kSlots) {
    TESSERA_RETURN_IF_ERROR(party.Finish(to_parent_[k % kSlots]));
  }
  TESSERA_ASSIGN_OR_RETURN(
      from_parent_[k % 2],
      party.Receive(place_.parent,
                    output_.Range(chunks_.first(k), chunks_.length(k))));
  return absl::OkStatus();
}

void TreeLane::CombineChunk(int64_t k, std::byte* result) {
  sources_[0] = input_.at(chunks_.first(k));
  for (int64_t c = 0; c < children(); ++c) {
    sources_[static_cast<size_t>(c + 1)] = Landing(c, k).data;
  }
  void* const destinations[] = {result};
  Combine(reducer_.At(is_root()), sources_, destinations, chunks_.length(k));
}

absl::Status TreeLane::MoveUp(Party& party, int64_t time) {
  const int64_t k = time - flow_.UpTime(place_.depth);
  if (!flow_.up || !Has(k)) return absl::OkStatus();
  const std::byte* result = input_.at(chunks_.first(k));
  if (children() > 0) {
    TESSERA_RETURN_IF_ERROR(party.Finish(OfChunk(from_children_, k % kSlots)));
    party.Enter(Phase::kReducing);
    std::byte* const combined =
        is_root() ? output_.at(chunks_.first(k)) : Landing(0, k).data;
    if (chunks_.length(k) > 0) CombineChunk(k, combined);
    result = combined;
  }
  if (is_root()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(party.Finish(to_parent_[k % kSlots]));
  TESSERA_ASSIGN_OR_RETURN(
      to_parent_[k % kSlots],
      party.Send(place_.parent, ConstVectorView(result, reducer_.element())
                                    .Range(0, chunks_.length(k))));
  sent_up_ = k + 1;
  return absl::OkStatus();
}

absl::Status TreeLane::MoveDown(Party& party, int64_t time) {
  const int64_t k = time - flow_.DownTime(place_.depth);
  if (!flow_.down || !Has(k)) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(party.Finish(from_parent_[k % 2]));
  const std::span<Request> sends = OfChunk(to_children_, k % 2);
  TESSERA_RETURN_IF_ERROR(party.Finish(sends));
  for (int64_t c = 0; c < children(); ++c) {
    TESSERA_ASSIGN_OR_RETURN(
        sends[static_cast<size_t>(c)],
        party.Send(place_.children()[static_cast<size_t>(c)],
                   source_.Range(chunks_.first(k), chunks_.length(k))));
  }
  return absl::OkStatus();
}

absl::Status TreeLane::Finish(Party& party) {
  TESSERA_RETURN_IF_ERROR(party.Finish(to_parent_));
  return party.Finish(to_children_);
}

}  // namespace tessera::collectives
