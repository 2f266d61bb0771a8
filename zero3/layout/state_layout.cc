#include "zero3/layout/state_layout.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "zero3/layout/state_layout_data.h"

namespace tessera::zero3 {

using layout_internal::CeilDivide;
using layout_internal::Index;
using topology::Rank;

StateLayout::StateLayout(std::shared_ptr<const State> state)
    : state_(std::move(state)) {}

const ModelParameters& StateLayout::model() const { return state_->model; }
const LayoutOptions& StateLayout::options() const { return state_->options; }

const StateLayout::Slots& StateLayout::SlotsOf(Rank rank) const {
  return state_
      ->slots[state_->in_chunks() ? 0 : static_cast<size_t>(rank.value())];
}

absl::StatusOr<LocalIndex> StateLayout::LocalOf(ParameterId parameter,
                                                int64_t element) const {
  TESSERA_RETURN_IF_ERROR(model().CheckId(parameter));
  const int64_t elements = model()[parameter].elements;
  if (element < 0 || element >= elements) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter ", parameter.value(), " has no element ",
                     element, "; allowed: 0 to below ", elements));
  }
  const size_t id = Index(parameter);
  const int64_t offset = state_->slot_offsets[id];
  if (!state_->in_chunks()) {
    return LocalIndex{state_->owners[id], offset + element};
  }
  const int64_t chunk = state_->slot_sizes[id];
  return LocalIndex{Rank(element / chunk), offset + element % chunk};
}

absl::StatusOr<GlobalIndex> StateLayout::GlobalOf(Rank rank,
                                                  int64_t offset) const {
  if (!Contains(rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the layout has no rank ", rank.value(),
                     "; allowed: 0 to below ", ranks()));
  }
  const Slots& slots = SlotsOf(rank);
  if (offset < 0 || offset >= slots.all.end) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank.value(), " has no offset ", offset,
                     "; allowed: 0 to below ", slots.all.end));
  }
  // The last slot that starts at or before the offset; empty slots before it
  // start where it does.
  const auto after =
      std::upper_bound(slots.offsets.begin(), slots.offsets.end(), offset);
  const auto at = static_cast<size_t>(after - slots.offsets.begin()) - 1;
  const ParameterId parameter = slots.parameters[at];
  const int64_t first =
      state_->in_chunks() ? rank.value() * state_->slot_sizes[Index(parameter)]
                          : 0;
  const int64_t element = first + offset - slots.offsets[at];
  return GlobalIndex{parameter, element,
                     element >= model()[parameter].elements};
}

Extent StateLayout::ExtentOf(Rank rank, ParameterId parameter) const {
  const size_t id = Index(parameter);
  Extent extent = {.parameter = parameter, .rank = rank};
  if (!state_->in_chunks() && state_->owners[id] != rank) return extent;
  extent.slot = state_->slot_sizes[id];
  extent.offset = state_->slot_offsets[id];
  const int64_t elements = model()[parameter].elements;
  extent.end = elements;
  if (state_->in_chunks()) {
    extent.begin = std::min(elements, rank.value() * extent.slot);
    extent.end = std::min(elements, (rank.value() + 1) * extent.slot);
  }
  return extent;
}

std::vector<Extent> StateLayout::ExtentsOf(Rank rank) const {
  std::vector<Extent> extents;
  for (const ParameterId parameter : SlotsOf(rank).parameters) {
    extents.push_back(ExtentOf(rank, parameter));
  }
  return extents;
}

std::vector<Extent> StateLayout::Locate(ParameterId parameter, int64_t begin,
                                        int64_t end) const {
  std::vector<Extent> extents;
  if (begin >= end) return extents;
  const size_t id = Index(parameter);
  const bool in_chunks = state_->in_chunks();
  const int64_t chunk = state_->slot_sizes[id];
  const int64_t first = in_chunks ? begin / chunk : state_->owners[id].value();
  const int64_t last = in_chunks ? (end - 1) / chunk : first;
  for (int64_t rank = first; rank <= last; ++rank) {
    Extent extent = ExtentOf(Rank(rank), parameter);
    const int64_t cut = std::max<int64_t>(begin - extent.begin, 0);
    extent.begin += cut;
    extent.offset += cut;
    extent.slot -= cut;
    extent.end = std::min(extent.end, end);
    extents.push_back(extent);
  }
  return extents;
}

LocalRange StateLayout::all(Rank rank) const { return SlotsOf(rank).all; }
LocalRange StateLayout::trainable(Rank rank) const {
  return SlotsOf(rank).trainable;
}
LocalRange StateLayout::sharded(Rank rank) const {
  return SlotsOf(rank).sharded;
}
int64_t StateLayout::padded_elements() const { return state_->padded_elements; }

bool StateLayout::IsSmall(ParameterId parameter) const {
  return state_->IsSmall(model()[parameter]);
}

int64_t StateLayout::GatheredElements(ParameterId parameter) const {
  const int64_t slot = state_->slot_sizes[Index(parameter)];
  return state_->in_chunks() ? slot * ranks() : slot;
}

absl::StatusOr<std::vector<Rank>> StateLayout::HoldersOf(
    std::span<const ParameterId> parameters) const {
  std::vector<Rank> holders;
  // With chunks the holders are the first ranks, as many as of the parameter
  // that reaches farthest.
  int64_t reach = 0;
  for (const ParameterId parameter : parameters) {
    TESSERA_RETURN_IF_ERROR(model().CheckId(parameter));
    const int64_t elements = model()[parameter].elements;
    if (elements == 0) continue;
    const size_t id = Index(parameter);
    if (state_->in_chunks()) {
      reach = std::max(reach, CeilDivide(elements, state_->slot_sizes[id]));
    } else {
      holders.push_back(state_->owners[id]);
    }
  }
  for (int64_t rank = 0; rank < reach; ++rank) holders.push_back(Rank(rank));
  std::sort(holders.begin(), holders.end());
  holders.erase(std::unique(holders.begin(), holders.end()), holders.end());
  return holders;
}

}  // namespace tessera::zero3
