#include "tools/train/model/activation_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/arithmetic.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "offload/tier/accounting.h"

namespace tessera::train {
namespace {

using offload::Purpose;
using tensor_parallel::KeptTensor;
using zero3::ShardAccess;

constexpr int64_t kNearBlocks = 2;
// The number of upcoming backwards that are announced to the prefetcher.
constexpr size_t kAnnounced = 2;

std::span<std::byte> PartOf(std::span<std::byte> block, int64_t offset,
                            int64_t bytes) {
  return block.subspan(static_cast<size_t>(offset), static_cast<size_t>(bytes));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ActivationStore>> ActivationStore::Create(
    std::span<const ActivationPass> passes, Options options) {
  if (!options.tier->IsLossless(Purpose::kActivations, options.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tier \"", options.tier->name(), "\" rounds activations of ",
        DTypeName(options.dtype),
        ", and gradients computed from them would be those of another model; "
        "give a tier that keeps every bit"));
  }
  std::unique_ptr<ActivationStore> store(
      new ActivationStore(std::move(options)));
  store->ReadOrder(passes);
  return store;
}

void ActivationStore::ReadOrder(std::span<const ActivationPass> passes) {
  std::set<ActivationPlace> forward;
  const auto is_forward_of = [&](size_t i, const ActivationPlace& place) {
    return passes[i].is_forward && passes[i].place == place;
  };
  int64_t away = 0;
  for (size_t i = 0; i < passes.size(); ++i) {
    const ActivationPlace& place = passes[i].place;
    if (passes[i].is_forward) {
      forward.insert(place);
      most_away_ = std::max(most_away_, ++away);
    } else if (forward.erase(place) > 0) {
      --away;
      if (is_forward_of(i - 1, place)) continue;
      sent_.insert(place);
      backwards_.push_back(place);
    }
  }
}

absl::Status ActivationStore::BeginStep() {
  in_step_ = true;
  next_backward_ = 0;
  return prefetch_ == nullptr ? absl::OkStatus() : prefetch_->BeginStep();
}

absl::StatusOr<zero3::ShardTraffic> ActivationStore::EndStep() {
  in_step_ = false;
  zero3::ShardTraffic traffic;
  if (prefetch_ != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(traffic, prefetch_->EndStep());
  }
  total_traffic_.Add(traffic);
  return traffic;
}

absl::Status ActivationStore::Put(const ActivationPlace& place,
                                  std::span<const KeptTensor> kept) {
  return At(place, "offloading its activations", Send(place, kept));
}

absl::Status ActivationStore::Take(const ActivationPlace& place,
                                   std::span<const KeptTensor> kept) {
  return At(place, "restoring its activations", BringBack(place, kept));
}

absl::Status ActivationStore::Send(const ActivationPlace& place,
                                   std::span<const KeptTensor> kept) {
  if (IsAway(place)) {
    return absl::FailedPreconditionError(
        "they are offloaded already: call Take before the next Put");
  }
  Block block;
  int64_t bytes = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    const std::optional<ConstTensorView> value = kept[i].value();
    if (!value.has_value()) continue;
    block.tensors.push_back(
        {.index = i,
         .offset = bytes,
         .bytes = value->size_in_bytes(),
         .dtype = value->dtype(),
         .shape = {value->shape().begin(), value->shape().end()}});
    bytes += RoundUp(value->size_in_bytes(),
                     static_cast<int64_t>(kDefaultAlignment));
  }
  TESSERA_ASSIGN_OR_RETURN(block.slot, FindSlot(place.window, bytes));
  zero3::ShardStore& store = *block.slot->store;
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                           store.Open(0, ShardAccess::kOverwrite));
  for (const SentTensor& tensor : block.tensors) {
    const ConstTensorView value = *kept[tensor.index].value();
    TESSERA_RETURN_IF_ERROR(options_.device.queue->Copy(
        {value.data(), static_cast<size_t>(tensor.bytes)},
        PartOf(memory, tensor.offset, tensor.bytes)));
  }
  // The tier writes the block from this memory.
  TESSERA_RETURN_IF_ERROR(store.Close(0, /*changed=*/true));
  for (const SentTensor& tensor : block.tensors) kept[tensor.index].Release();
  block.slot->is_used = true;
  away_.emplace(place, std::move(block));
  return absl::OkStatus();
}

absl::Status ActivationStore::BringBack(const ActivationPlace& place,
                                        std::span<const KeptTensor> kept) {
  const auto found = away_.find(place);
  if (found == away_.end()) {
    return absl::FailedPreconditionError(
        "they are not offloaded: call Put before Take");
  }
  Slot& slot = *found->second.slot;
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                           slot.store->Open(0));
  for (const SentTensor& tensor : found->second.tensors) {
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView own,
        kept[tensor.index].Reserve(tensor.dtype, tensor.shape));
    TESSERA_RETURN_IF_ERROR(options_.device.queue->Copy(
        PartOf(memory, tensor.offset, tensor.bytes),
        {own.data(), static_cast<size_t>(tensor.bytes)}));
  }
  // The memory is free for the next block.
  TESSERA_RETURN_IF_ERROR(slot.store->Close(0, /*changed=*/false));
  TESSERA_RETURN_IF_ERROR(slot.store->Discard(0));
  slot.is_used = false;
  away_.erase(found);
  AnnounceAfter(place);
  return absl::OkStatus();
}

// Returns the lowest free slot. Its block is as large as the largest
// activations that it has held; with mixtures of experts sizes vary by step.
absl::StatusOr<ActivationStore::Slot*> ActivationStore::FindSlot(
    size_t window, int64_t bytes) {
  std::vector<std::unique_ptr<Slot>>& slots = slots_[window];
  auto found = std::find_if(slots.begin(), slots.end(),
                            [](const auto& slot) { return !slot->is_used; });
  if (found == slots.end()) {
    slots.push_back(std::make_unique<Slot>());
    found = std::prev(slots.end());
    (*found)->key = absl::StrCat(options_.key_prefix, "activations/",
                                 options_.names[window], "/", slots.size() - 1);
  }
  Slot& slot = **found;
  if (slot.store == nullptr || slot.bytes < bytes) {
    slot.store = nullptr;
    TESSERA_RETURN_IF_ERROR(MakeRoom(slot, bytes));
  }
  return &slot;
}

absl::Status ActivationStore::MakeRoom(Slot& slot, int64_t bytes) {
  if (prefetch_ == nullptr) {
    prefetch_ =
        std::make_shared<zero3::ShardPrefetch>(zero3::ShardPrefetch::Options{
            .near_bytes = bytes * std::min(kNearBlocks, most_away_),
            .device = options_.device});
    if (in_step_) TESSERA_RETURN_IF_ERROR(prefetch_->BeginStep());
  }
  std::vector<zero3::ShardBlock> blocks = {{.key = slot.key,
                                            .bytes = bytes,
                                            .dtype = options_.dtype,
                                            .tier = options_.tier}};
  TESSERA_ASSIGN_OR_RETURN(
      slot.store, zero3::ShardStore::Create(std::move(blocks),
                                            {.purpose = Purpose::kActivations,
                                             .device = options_.device,
                                             .prefetch = prefetch_}));
  slot.bytes = bytes;
  return absl::OkStatus();
}

// Announces the backwards after `place`. Used in the first step; later steps
// use the order of the previous step.
void ActivationStore::AnnounceAfter(const ActivationPlace& place) {
  const auto from =
      backwards_.begin() + static_cast<std::ptrdiff_t>(next_backward_);
  const auto found = std::find(from, backwards_.end(), place);
  if (found == backwards_.end()) return;
  next_backward_ = static_cast<size_t>(found - backwards_.begin()) + 1;
  const size_t end = std::min(next_backward_ + kAnnounced, backwards_.size());
  for (size_t i = next_backward_; i < end; ++i) {
    const auto next = away_.find(backwards_[i]);
    if (next != away_.end()) next->second.slot->store->Announce(0);
  }
}

std::string ActivationStore::NameOf(const ActivationPlace& place) const {
  return absl::StrCat(options_.names[place.window], ", micro-batch ",
                      place.microbatch);
}

// Adds the layer and micro-batch to an error. A block is written only when its
// near memory is needed, so the error may concern another activation's block.
absl::Status ActivationStore::At(const ActivationPlace& place,
                                 std::string_view what,
                                 const absl::Status& status) const {
  if (status.ok()) return status;
  std::string message =
      absl::StrCat(NameOf(place), ": ", what, ": ", status.message());
  for (const auto& [other, block] : away_) {
    const std::string key = offload::QuoteKey(block.slot->key);
    if (!absl::StrContains(status.message(), key)) continue;
    absl::StrAppend(&message, " (", key, " has the activations of ",
                    NameOf(other), ")");
  }
  return absl::Status(status.code(), message);
}

}  // namespace tessera::train
