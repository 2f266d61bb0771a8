#include "tools/train/checkpoint/memory_copies.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/fnv1a.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "collectives/groups/agreement.h"
#include "nlohmann/json.hpp"
#include "tools/train/step/run_progress.h"
#include "zero3/checkpoint/state_blocks.h"

namespace tessera::train {
namespace {

using collectives::Rank;
using zero3::BlockRange;

constexpr int64_t kBlockElements = int64_t{1} << 20;
constexpr size_t kMaxOfferBytes = size_t{16} << 20;

// The keys under which the metadata of a copy has what checkpoints record in
// their manifest. All states of a rank, and all ranks, have the same values.
constexpr std::string_view kStateStepsKey = "state_steps";
constexpr std::string_view kLossScaleKey = "loss_scale";
constexpr std::string_view kStepsOfScaleKey = "steps_since_scale_change";
constexpr std::string_view kScalesKey = "fp8_scales";  // If there are any.

int64_t BytesOf(const std::vector<BlockRange>& blocks) {
  int64_t bytes = 0;
  for (const BlockRange& range : blocks) bytes += range.bytes();
  return bytes;
}

int64_t BytesOf(const std::vector<std::vector<BlockRange>>& parts) {
  int64_t bytes = 0;
  for (const auto& blocks : parts) bytes += BytesOf(blocks);
  return bytes;
}

std::span<std::byte> ScalesOf(TrainRank& rank) {
  return rank.fp8() == nullptr ? std::span<std::byte>() : rank.fp8()->state();
}

// The number of bytes and a hash of the blocks: "1024 9f3b...".
std::string FormOf(const std::vector<std::vector<BlockRange>>& parts,
                   size_t scales) {
  std::string text = absl::StrCat(scales, ";");
  for (const auto& blocks : parts) {
    for (const BlockRange& range : blocks) {
      absl::StrAppend(&text, range.parameter.value(), ":",
                      static_cast<int>(range.part), ":", range.begin, ":",
                      range.end, ":", range.bytes(), ",");
    }
    text += ';';
  }
  return absl::StrFormat(
      "%d %016x", BytesOf(parts) + static_cast<int64_t>(scales), Fnv1a(text));
}

int64_t BytesOfForm(std::string_view form) {
  int64_t bytes = 0;
  return absl::SimpleAtoi(form.substr(0, form.find(' ')), &bytes) ? bytes : 0;
}

collectives::ConstBuffer Sent(const zero3::AccountedMemory& memory) {
  const std::span<std::byte> bytes = memory.bytes();
  return {bytes.data(), static_cast<int64_t>(bytes.size()), DType::kU8};
}

collectives::Buffer Received(const zero3::AccountedMemory& memory) {
  const std::span<std::byte> bytes = memory.bytes();
  return {bytes.data(), static_cast<int64_t>(bytes.size()), DType::kU8};
}

}  // namespace

int64_t PartnerDistance(std::span<const collectives::RankLocation> locations) {
  const size_t ranks = locations.size();
  std::map<std::string_view, int> numbers;
  std::vector<int> hosts;
  for (const collectives::RankLocation& location : locations) {
    hosts.push_back(
        numbers.emplace(location.host, static_cast<int>(numbers.size()))
            .first->second);
  }
  for (size_t distance = 1; distance < ranks; ++distance) {
    bool differ = true;
    for (size_t r = 0; r < ranks && differ; ++r) {
      differ = hosts[r] != hosts[(r + distance) % ranks];
    }
    if (differ) return static_cast<int64_t>(distance);
  }
  return 1;
}

std::vector<BlockRange> BlocksToCopy(zero3::ShardedState& state) {
  return zero3::PlanBlocks({state.layout(), state.rank()},
                           zero3::MomentsOf(state), kBlockElements);
}

std::string MemoryCopies::FormatOffers(const std::vector<Offer>& offers) {
  nlohmann::json json = nlohmann::json::array();
  for (const Offer& offer : offers) {
    json.push_back({{"sequence", offer.sequence},
                    {"metadata", offer.metadata},
                    {"own", offer.own_form},
                    {"held", offer.held_form},
                    {"held_rank", offer.held_rank}});
  }
  return DumpJson(json);
}

absl::StatusOr<std::vector<MemoryCopies::Offer>> MemoryCopies::ParseOffers(
    const std::string& text) {
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json json,
                           ParseJson(text, {.max_bytes = kMaxOfferBytes}));
  JsonProblems problems;
  std::vector<Offer> offers;
  for (const nlohmann::json& one : json) {
    JsonReader reader(one, "", problems);
    Offer& offer = offers.emplace_back();
    offer.sequence =
        reader.Integer("sequence", 1, std::numeric_limits<int64_t>::max());
    offer.own_form = reader.Text("own");
    offer.held_form = reader.Text("held");
    offer.held_rank =
        reader.Integer("held_rank", 0, std::numeric_limits<int64_t>::max());
    for (const auto& [key, value] : reader.Object("metadata").items()) {
      if (value.is_string()) offer.metadata[key] = value.get<std::string>();
    }
  }
  TESSERA_RETURN_IF_ERROR(problems.ToStatus("the copies of a rank"));
  return offers;
}

const MemoryCopies::Offer* MemoryCopies::Find(const std::vector<Offer>& offers,
                                              int64_t sequence) {
  for (const Offer& offer : offers) {
    if (offer.sequence == sequence) return &offer;
  }
  return nullptr;
}

std::vector<MemoryCopies::Offer> MemoryCopies::Offers() const {
  std::vector<Offer> offers;
  for (const std::optional<Copies>* copies : {&committed_, &pending_}) {
    if (!copies->has_value()) continue;
    const Copies& found = **copies;
    offers.push_back({found.sequence, found.metadata, found.own_form,
                      found.held_form, found.held_rank});
  }
  return offers;
}

std::optional<int64_t> MemoryCopies::HolderOf(int64_t rank,
                                              int64_t sequence) const {
  for (size_t r = 0; r < offers_.size(); ++r) {
    const Offer* const offer = Find(offers_[r], sequence);
    if (offer != nullptr && !offer->held_form.empty() &&
        offer->held_rank == rank) {
      return static_cast<int64_t>(r);
    }
  }
  return std::nullopt;
}

// True if each rank has its own copy, or another rank holds one.
bool MemoryCopies::AreComplete(int64_t sequence) const {
  for (int64_t r = 0; r < size(); ++r) {
    const Offer* const own = Find(offers_[static_cast<size_t>(r)], sequence);
    const bool has_own = own != nullptr && !own->own_form.empty();
    if (!has_own && !HolderOf(r, sequence).has_value()) return false;
  }
  return true;
}

absl::StatusOr<bool> MemoryCopies::Join(
    collectives::Communicator& world,
    std::span<const collectives::RankLocation> locations) {
  if (world.size() == 1) {
    return absl::InvalidArgumentError(
        "copies in memory need at least two ranks: a single rank has no other "
        "that could keep its copy");
  }
  std::vector<Rank> members;
  for (int64_t r = 0; r < world.size(); ++r) members.emplace_back(r);
  TESSERA_ASSIGN_OR_RETURN(
      group_,
      world.host().Subgroup(members, absl::StrCat(world.name(), "/copies")));
  distance_ = PartnerDistance(locations);
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      collectives::ExchangeTexts(*group_, FormatOffers(Offers()),
                                 group_->options().timeout));
  offers_.clear();
  found_ = 0;
  for (const std::string& text : texts) {
    TESSERA_ASSIGN_OR_RETURN(offers_.emplace_back(), ParseOffers(text));
  }
  for (const std::vector<Offer>& offers : offers_) {
    for (const Offer& offer : offers) {
      sequence_ = std::max(sequence_, offer.sequence);
      if (offer.sequence > found_ && AreComplete(offer.sequence)) {
        found_ = offer.sequence;
      }
    }
  }
  return found_ > 0;
}

absl::StatusOr<std::vector<std::string>> MemoryCopies::ExchangeForms(
    TrainRank& rank) {
  blocks_.clear();
  for (const ShardedModel::Part& part : rank.model().parts()) {
    blocks_.push_back(BlocksToCopy(*part.state));
  }
  own_form_ = FormOf(blocks_, ScalesOf(rank).size());
  TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> forms,
                           collectives::ExchangeTexts(
                               *group_, own_form_, group_->options().timeout));
  const int64_t held = group_->rank().value() + size() - distance_;
  held_form_ = forms[static_cast<size_t>(held % size())];
  return forms;
}

// True if all copies that Restore would use have the forms of the states.
bool MemoryCopies::FormsAreEqual(const std::vector<std::string>& forms) const {
  for (size_t r = 0; r < forms.size(); ++r) {
    const Offer* const own = Find(offers_[r], found_);
    if (own != nullptr && !own->own_form.empty()) {
      if (own->own_form != forms[r]) return false;
      continue;
    }
    // Exists, because the copies are complete.
    const int64_t holder = *HolderOf(static_cast<int64_t>(r), found_);
    const Offer& held = *Find(offers_[static_cast<size_t>(holder)], found_);
    if (held.held_form != forms[r]) return false;
  }
  return true;
}

absl::StatusOr<zero3::AccountedMemory> MemoryCopies::Allocate(
    int64_t bytes) const {
  return zero3::AccountedMemory::Allocate(zero3::StateDevice(accounting_),
                                          "copy of the state", bytes,
                                          offload::Purpose::kBuffers);
}

absl::StatusOr<std::optional<zero3::CheckpointMetadata>> MemoryCopies::Restore(
    TrainRank& rank) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> forms,
                           ExchangeForms(rank));
  if (found_ == 0 || !FormsAreEqual(forms)) {
    Drop();
    return std::nullopt;
  }
  Copies copies;
  if (committed_.has_value() && committed_->sequence == found_) {
    copies = *std::move(committed_);
  } else if (pending_.has_value() && pending_->sequence == found_) {
    copies = *std::move(pending_);
  }
  Drop();
  TESSERA_RETURN_IF_ERROR(Return(copies));
  const absl::StatusOr<int64_t> steps = Write(copies, rank);
  TESSERA_RETURN_IF_ERROR(collectives::AgreeOnStatus(
      *group_, steps.status(), group_->options().timeout));
  for (const ShardedModel::Part& part : rank.model().parts()) {
    TESSERA_RETURN_IF_ERROR(part.state->FinishRestoring(*steps));
  }
  copies.is_reusable = false;
  committed_ = std::move(copies);
  return committed_->metadata;
}

absl::Status MemoryCopies::Return(Copies& copies) {
  const int64_t self = group_->rank().value();
  for (int64_t r = 0; r < size(); ++r) {
    const Offer* const own = Find(offers_[static_cast<size_t>(r)], found_);
    if (own != nullptr && !own->own_form.empty()) continue;
    const int64_t holder = *HolderOf(r, found_);
    if (self == holder) {
      TESSERA_RETURN_IF_ERROR(group_->Send(Sent(copies.held), Rank(r)));
    }
    if (self != r) continue;
    const Offer& offer = *Find(offers_[static_cast<size_t>(holder)], found_);
    copies.sequence = found_;
    copies.metadata = offer.metadata;
    copies.own_form = offer.held_form;
    TESSERA_ASSIGN_OR_RETURN(copies.own,
                             Allocate(BytesOfForm(copies.own_form)));
    TESSERA_RETURN_IF_ERROR(
        group_->Receive(Received(copies.own), Rank(holder)));
  }
  return absl::OkStatus();
}

// All but FinishRestoring, which is a collective and needs the returned steps.
absl::StatusOr<int64_t> MemoryCopies::Write(const Copies& copies,
                                            TrainRank& rank) {
  TESSERA_ASSIGN_OR_RETURN(RunProgress progress, ProgressFrom(copies.metadata));
  int64_t steps = 0, steps_of_scale = 0;
  double scale = 1;
  const auto text = [&](std::string_view key) {
    const auto found = copies.metadata.find(std::string(key));
    return found == copies.metadata.end() ? std::string() : found->second;
  };
  if (!absl::SimpleAtoi(text(kStateStepsKey), &steps) ||
      !absl::SimpleAtoi(text(kStepsOfScaleKey), &steps_of_scale) ||
      !absl::SimpleAtod(text(kLossScaleKey), &scale)) {
    return absl::InternalError("a copy in memory has invalid metadata");
  }
  std::span<const std::byte> bytes = copies.own.bytes();
  for (size_t i = 0; i < blocks_.size(); ++i) {
    zero3::ShardedState& state = *rank.model().parts()[i].state;
    const auto size = static_cast<size_t>(BytesOf(blocks_[i]));
    TESSERA_RETURN_IF_ERROR(
        zero3::WriteBlocks(state, blocks_[i], bytes.first(size)));
    bytes = bytes.subspan(size);
    TESSERA_RETURN_IF_ERROR(state.optimizer().Settle());
    state.scaler().Restore(scale, steps_of_scale);
  }
  if (rank.fp8() != nullptr) {
    zero3::ShardedState& state = rank.state();
    TESSERA_RETURN_IF_ERROR(state.staging().Upload(bytes, ScalesOf(rank)));
    TESSERA_RETURN_IF_ERROR(state.queue().Synchronize());
    rank.fp8()->set_has_history(!text(kScalesKey).empty());
  }
  rank.SetProgress(std::move(progress));
  return steps;
}

absl::Status MemoryCopies::Take(TrainRank& rank,
                                zero3::CheckpointMetadata metadata) {
  TESSERA_RETURN_IF_ERROR(Finish());
  if (pending_.has_value()) spare_ = std::move(pending_);
  pending_.emplace();
  Copies& copies = *pending_;
  copies.sequence = ++sequence_;
  AddTo(rank.progress(), metadata);
  zero3::ShardedState& dense = rank.state();
  metadata[std::string(kStateStepsKey)] = absl::StrCat(dense.steps());
  metadata[std::string(kLossScaleKey)] =
      absl::StrFormat("%.17g", dense.scaler().scale());
  metadata[std::string(kStepsOfScaleKey)] =
      absl::StrCat(dense.scaler().steps_since_change());
  if (rank.fp8() != nullptr && rank.fp8()->has_history()) {
    metadata[std::string(kScalesKey)] = "delayed";
  }
  copies.metadata = std::move(metadata);
  if (spare_.has_value() && spare_->is_reusable) {
    copies.own = std::move(spare_->own);
    copies.held = std::move(spare_->held);
    spare_.reset();
  } else {
    spare_.reset();
    // Queues of a device copy only to its staging memory.
    zero3::StateDevice host(accounting_);
    host.memory = dense.queue().device().staging_memory();
    TESSERA_ASSIGN_OR_RETURN(
        copies.own, zero3::AccountedMemory::Allocate(
                        host, "copy of the state", BytesOfForm(own_form_),
                        offload::Purpose::kBuffers));
    TESSERA_ASSIGN_OR_RETURN(copies.held, Allocate(BytesOfForm(held_form_)));
  }
  copies.is_reusable = true;
  TESSERA_RETURN_IF_ERROR(StartCopy(rank));
  thread_ = std::thread([this] { exchanged_ = Exchange(); });
  return absl::OkStatus();
}

absl::Status MemoryCopies::StartCopy(TrainRank& rank) {
  copied_.clear();
  std::span<std::byte> target = pending_->own.bytes();
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const auto size = static_cast<size_t>(BytesOf(blocks_[i]));
    TESSERA_ASSIGN_OR_RETURN(
        copied_.emplace_back(),
        zero3::StartCopyOfBlocks(*rank.model().parts()[i].state, blocks_[i],
                                 target.first(size)));
    target = target.subspan(size);
  }
  if (rank.fp8() == nullptr) return absl::OkStatus();
  Queue& queue = rank.state().queue();
  TESSERA_RETURN_IF_ERROR(queue.Copy(ScalesOf(rank), target));
  TESSERA_ASSIGN_OR_RETURN(copied_.emplace_back(), queue.Record());
  return absl::OkStatus();
}

absl::Status MemoryCopies::Exchange() {
  for (const Event& event : copied_) TESSERA_RETURN_IF_ERROR(event.Wait());
  pending_->own_form = own_form_;
  const int64_t self = group_->rank().value();
  const Rank to((self + distance_) % size());
  const Rank from((self + size() - distance_) % size());
  TESSERA_RETURN_IF_ERROR(group_->SendReceive(Sent(pending_->own), to,
                                              Received(pending_->held), from));
  pending_->held_form = held_form_;
  pending_->held_rank = from.value();
  return absl::OkStatus();
}

absl::Status MemoryCopies::Finish() {
  if (!thread_.joinable()) return absl::OkStatus();
  thread_.join();
  return Annotate(exchanged_, "exchanging copies in memory");
}

void MemoryCopies::Commit() {
  if (!pending_.has_value()) return;
  // Memory that has been used needs no new pages.
  spare_ = std::move(committed_);
  committed_ = std::move(pending_);
  pending_.reset();
}

void MemoryCopies::Drop() {
  committed_.reset();
  pending_.reset();
  spare_.reset();
}

void MemoryCopies::Leave() {
  if (thread_.joinable()) thread_.join();
  group_.reset();
}

}  // namespace tessera::train
