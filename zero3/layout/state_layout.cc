#include "zero3/layout/state_layout.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "zero3/layout/balance.h"

namespace tessera::zero3 {

// The slots of one rank, or of each rank alike, in the order of offsets.
struct StateLayout::Slots {
  std::vector<ParameterId> parameters;
  std::vector<int64_t> offsets;
  LocalRange all;
  LocalRange trainable;
  LocalRange sharded;
};

struct StateLayout::State {
  ModelParameters model;
  LayoutOptions options;
  // By id: the size of a slot, its offset, and the owner of a whole parameter.
  std::vector<int64_t> slot_sizes;
  std::vector<int64_t> slot_offsets;
  std::vector<topology::Rank> owners;
  // By rank; a single one that serves all with kChunks.
  std::vector<Slots> slots;
  int64_t padded_elements = 0;

  bool in_chunks() const { return options.kind == LayoutKind::kChunks; }
  bool IsSmall(const Parameter& parameter) const {
    return parameter.elements < options.small_below;
  }
};

namespace {

size_t Index(ParameterId id) { return static_cast<size_t>(id.value()); }

int64_t CeilDivide(int64_t a, int64_t b) {
  return a / b + (a % b == 0 ? 0 : 1);
}

using topology::Rank;

absl::Status CheckRange(std::string_view option, int64_t value, int64_t least,
                        int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("layout option ", option, " is ", value,
                   "; allowed: ", least, " to ", most));
}

absl::Status CheckOptions(const LayoutOptions& options) {
  if (topology::EnumName(options.kind).empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout option kind is ", static_cast<int>(options.kind),
                     "; allowed: ", topology::AllowedNames<LayoutKind>()));
  }
  TESSERA_RETURN_IF_ERROR(
      CheckRange("ranks", options.ranks, 1, kMaxShardRanks));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("alignment", options.alignment, 1, kMaxAlignment));
  TESSERA_RETURN_IF_ERROR(CheckRange("small_below", options.small_below, 0,
                                     std::numeric_limits<int64_t>::max()));
  return CheckRange("optimizer_bytes", options.optimizer_bytes, 0,
                    kMaxOptimizerBytes);
}

// The part (of four) of a rank's index space that contains a parameter.
int PartOf(bool is_trainable, bool is_small) {
  if (is_trainable) return is_small ? 0 : 1;
  return is_small ? 3 : 2;
}

}  // namespace

// Builds the state in three steps, each of which needs the one before.
class StateLayout::Maker {
 public:
  Maker(const ModelParameters& model, const LayoutOptions& options)
      : state_(std::make_shared<State>()) {
    state_->model = model;
    state_->options = options;
  }

  absl::StatusOr<StateLayout> Make() && {
    TESSERA_RETURN_IF_ERROR(SizeSlots());
    TESSERA_RETURN_IF_ERROR(ChooseOwners());
    PlaceSlots();
    return StateLayout(std::move(state_));
  }

 private:
  absl::Status SizeSlots() {
    const LayoutOptions& options = state_->options;
    const int64_t parts = state_->in_chunks() ? options.ranks : 1;
    const int64_t unit = parts * options.alignment;
    for (const Parameter& parameter : state_->model.all()) {
      const int64_t units = CeilDivide(parameter.elements, unit);
      if (units > (kMaxLayoutElements - state_->padded_elements) / unit) {
        return absl::InvalidArgumentError(absl::StrCat(
            "with parameter ", parameter.id.value(), " of ", parameter.elements,
            " elements the layout exceeds 2^48 elements with its padding; use "
            "fewer ranks or a smaller alignment"));
      }
      state_->padded_elements += units * unit;
      state_->slot_sizes.push_back(units * options.alignment);
    }
    return absl::OkStatus();
  }

  absl::Status ChooseOwners() {
    const int64_t ranks = state_->options.ranks;
    if (state_->options.kind == LayoutKind::kRoundRobin) {
      for (const Parameter& parameter : state_->model.all()) {
        state_->owners.push_back(Rank(parameter.id.value() % ranks));
      }
    }
    if (state_->options.kind == LayoutKind::kBalanced) {
      std::vector<int64_t> weights;
      for (const Parameter& parameter : state_->model.all()) {
        weights.push_back(state_->slot_sizes[Index(parameter.id)] *
                          BytesOfElement(parameter));
      }
      TESSERA_ASSIGN_OR_RETURN(state_->owners,
                               BalanceLargestFirst(weights, ranks));
    }
    return absl::OkStatus();
  }

  int64_t BytesOfElement(const Parameter& parameter) const {
    return SizeInBytes(parameter.dtype()) +
           (parameter.trainable() ? state_->options.optimizer_bytes : 0);
  }

  void PlaceSlots() {
    const bool in_chunks = state_->in_chunks();
    state_->slots.resize(
        in_chunks ? 1 : static_cast<size_t>(state_->options.ranks));
    state_->slot_offsets.resize(state_->slot_sizes.size());
    std::vector<std::array<int64_t, 4>> ends(state_->slots.size());
    for (int part = 0; part < 4; ++part) {
      for (const Parameter& parameter : state_->model.all()) {
        if (PartOf(parameter.trainable(), state_->IsSmall(parameter)) == part) {
          const size_t id = Index(parameter.id);
          Place(id, in_chunks
                        ? 0
                        : static_cast<size_t>(state_->owners[id].value()));
        }
      }
      for (size_t i = 0; i < ends.size(); ++i) {
        ends[i][static_cast<size_t>(part)] = state_->slots[i].all.end;
      }
    }
    for (size_t i = 0; i < ends.size(); ++i) {
      state_->slots[i].trainable = {0, ends[i][1]};
      state_->slots[i].sharded = {ends[i][0], ends[i][2]};
    }
  }

  void Place(size_t id, size_t rank) {
    Slots& slots = state_->slots[rank];
    slots.parameters.push_back(ParameterId(static_cast<int64_t>(id)));
    slots.offsets.push_back(slots.all.end);
    state_->slot_offsets[id] = slots.all.end;
    slots.all.end += state_->slot_sizes[id];
  }

  std::shared_ptr<State> state_;
};

absl::StatusOr<StateLayout> StateLayout::Create(const ModelParameters& model,
                                                const LayoutOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckOptions(options));
  return Maker(model, options).Make();
}

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
  // The last slot that starts at or before the offset; preceding empty slots
  // start at the same place.
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
