#include <array>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "zero3/layout/balance.h"
#include "zero3/layout/state_layout.h"
#include "zero3/layout/state_layout_data.h"

namespace tessera::zero3 {
namespace {

using layout_internal::CeilDivide;
using layout_internal::Index;
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

// In which of the four parts of a rank's index space a parameter lies.
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

}  // namespace tessera::zero3
