#include "zero3/layout/state_layout.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <queue>
#include <set>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/arithmetic.h"
#include "base/status_macros.h"

namespace tessera::zero3 {

namespace {

absl::Status Check(std::span<const int64_t> weights, int64_t ranks) {
  if (ranks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks is ", ranks, "; allowed: 1 or more"));
  }
  int64_t sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "weight ", i, " is ", weights[i], "; allowed: 0 or more"));
    }
    if (__builtin_add_overflow(sum, weights[i], &sum)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the weights exceed 2^63-1 in all at number ", i));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<topology::Rank>> BalanceLargestFirst(
    std::span<const int64_t> weights, int64_t ranks) {
  TESSERA_RETURN_IF_ERROR(Check(weights, ranks));
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  // There are at most as many used ranks as weights.
  const int64_t used = std::min(ranks, static_cast<int64_t>(weights.size()));
  using Load = std::pair<int64_t, topology::Rank>;
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (int64_t rank = 0; rank < used; ++rank) {
    loads.push({0, topology::Rank(rank)});
  }
  std::vector<topology::Rank> owners(weights.size());
  for (const size_t i : order) {
    const auto [load, rank] = loads.top();
    loads.pop();
    owners[i] = rank;
    loads.push({load + weights[i], rank});
  }
  return owners;
}

struct StateLayout::State {
  ModelParameters model;
  LayoutOptions options;
  // By id: the size of a slot, its offset, and the owner of a whole parameter.
  std::vector<int64_t> slot_sizes;
  std::vector<int64_t> slot_offsets;
  std::vector<topology::Rank> owners;
  // The slots by rank, in order; with kChunks, a single list for all ranks.
  std::vector<std::vector<ParameterId>> held;

  bool in_chunks() const { return options.kind == LayoutKind::kChunks; }
  bool IsSmall(const ModelParameter& parameter) const {
    return parameter.elements < options.small_below;
  }
};

namespace {

size_t Index(ParameterId id) { return static_cast<size_t>(id.value()); }

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

// Builds the state in three steps, each of which needs the previous one.
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
    int64_t padded = 0;
    for (const ModelParameter& parameter : state_->model.all()) {
      const int64_t units = CeilDiv(parameter.elements, unit);
      if (units > (kMaxLayoutElements - padded) / unit) {
        return absl::InvalidArgumentError(absl::StrCat(
            "with parameter ", parameter.id.value(), " of ", parameter.elements,
            " elements the layout exceeds 2^48 elements with its padding; use "
            "fewer ranks or a smaller alignment"));
      }
      padded += units * unit;
      state_->slot_sizes.push_back(units * options.alignment);
    }
    return absl::OkStatus();
  }

  absl::Status ChooseOwners() {
    const int64_t ranks = state_->options.ranks;
    if (state_->options.kind == LayoutKind::kRoundRobin) {
      for (const ModelParameter& parameter : state_->model.all()) {
        state_->owners.push_back(Rank(parameter.id.value() % ranks));
      }
    }
    if (state_->options.kind == LayoutKind::kBalanced) {
      std::vector<int64_t> weights;
      for (const ModelParameter& parameter : state_->model.all()) {
        weights.push_back(state_->slot_sizes[Index(parameter.id)] *
                          BytesOfElement(parameter));
      }
      TESSERA_ASSIGN_OR_RETURN(state_->owners,
                               BalanceLargestFirst(weights, ranks));
    }
    return absl::OkStatus();
  }

  int64_t BytesOfElement(const ModelParameter& parameter) const {
    return SizeInBytes(parameter.dtype()) +
           (parameter.trainable() ? state_->options.optimizer_bytes : 0);
  }

  void PlaceSlots() {
    const size_t lists =
        state_->in_chunks() ? 1 : static_cast<size_t>(state_->options.ranks);
    state_->held.resize(lists);
    state_->slot_offsets.resize(state_->slot_sizes.size());
    std::vector<int64_t> ends(lists);
    for (int part = 0; part < 4; ++part) {
      for (const ModelParameter& parameter : state_->model.all()) {
        if (PartOf(parameter.trainable(), state_->IsSmall(parameter)) != part) {
          continue;
        }
        const size_t id = Index(parameter.id);
        const size_t list =
            lists == 1 ? 0 : static_cast<size_t>(state_->owners[id].value());
        state_->held[list].push_back(parameter.id);
        state_->slot_offsets[id] = ends[list];
        ends[list] += state_->slot_sizes[id];
      }
    }
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

absl::Status StateLayout::CheckRank(Rank rank) const {
  if (rank >= Rank(0) && rank.value() < ranks()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the layout has no rank ", rank.value(),
                   "; allowed: 0 to below ", ranks()));
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
  const Extent extent = Locate(parameter, element, element + 1)[0];
  return LocalIndex{extent.rank, extent.offset};
}

absl::StatusOr<GlobalIndex> StateLayout::GlobalOf(Rank rank,
                                                  int64_t offset) const {
  TESSERA_RETURN_IF_ERROR(CheckRank(rank));
  const std::span<const ParameterId> slots = SlotsOf(rank);
  // The last slot that starts at or before the offset. Empty slots before it
  // start at the same offset.
  const auto after = std::upper_bound(
      slots.begin(), slots.end(), offset, [&](int64_t value, ParameterId id) {
        return value < state_->slot_offsets[Index(id)];
      });
  if (after != slots.begin()) {
    const ParameterId parameter = *std::prev(after);
    const int64_t at = offset - state_->slot_offsets[Index(parameter)];
    const int64_t slot = state_->slot_sizes[Index(parameter)];
    const int64_t element =
        at + (state_->in_chunks() ? rank.value() * slot : 0);
    if (at < slot) {
      return GlobalIndex{parameter, element,
                         element >= model()[parameter].elements};
    }
  }
  const std::vector<Extent> extents = ExtentsOf(rank);
  return absl::InvalidArgumentError(absl::StrCat(
      "rank ", rank.value(), " has no offset ", offset,
      "; allowed: 0 to below ",
      extents.empty() ? 0 : extents.back().offset + extents.back().slot));
}

absl::StatusOr<std::vector<Rank>> StateLayout::HoldersOf(
    std::span<const ParameterId> parameters) const {
  std::set<Rank> holders;
  for (const ParameterId parameter : parameters) {
    TESSERA_RETURN_IF_ERROR(model().CheckId(parameter));
    for (const Extent& extent :
         Locate(parameter, 0, model()[parameter].elements)) {
      holders.insert(extent.rank);
    }
  }
  return std::vector<Rank>(holders.begin(), holders.end());
}

std::span<const ParameterId> StateLayout::SlotsOf(Rank rank) const {
  return state_
      ->held[state_->in_chunks() ? 0 : static_cast<size_t>(rank.value())];
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
  for (const ParameterId parameter : SlotsOf(rank)) {
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

bool StateLayout::IsSmall(ParameterId parameter) const {
  return state_->IsSmall(model()[parameter]);
}

int64_t StateLayout::GatheredElements(ParameterId parameter) const {
  const int64_t slot = state_->slot_sizes[Index(parameter)];
  return state_->in_chunks() ? slot * ranks() : slot;
}

}  // namespace tessera::zero3
