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
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/fnv1a.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "collectives/groups/agreement.h"
#include "nlohmann/json.hpp"
#include "tools/train/checkpoint/fp8_scales.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/step/run_progress.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/file_calls.h"
#include "zero3/checkpoint/state_blocks.h"
#include "zero3/layout/state_layout.h"

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
constexpr std::string_view kHasScalesKey = "has_fp8_scales";
// The metadata of a planned part with scales of fp8: DescribeFp8Layers.
constexpr std::string_view kFp8LayersKey = "fp8_layers";

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

// The numbers that checkpoints record besides the blocks of a state.
struct StateNumbers {
  int64_t steps = 0;
  double loss_scale = 1;
  int64_t steps_since_scale_change = 0;
};

std::string TextAt(const zero3::CheckpointMetadata& metadata,
                   std::string_view key) {
  const auto found = metadata.find(std::string(key));
  return found == metadata.end() ? "" : found->second;
}

absl::StatusOr<StateNumbers> NumbersFrom(
    const zero3::CheckpointMetadata& metadata) {
  StateNumbers numbers;
  if (!absl::SimpleAtoi(TextAt(metadata, kStateStepsKey), &numbers.steps) ||
      !absl::SimpleAtoi(TextAt(metadata, kStepsOfScaleKey),
                        &numbers.steps_since_scale_change) ||
      !absl::SimpleAtod(TextAt(metadata, kLossScaleKey), &numbers.loss_scale)) {
    return absl::InternalError("a copy in memory has invalid metadata");
  }
  return numbers;
}

// BlocksToCopy of the state that a shard belongs to. At stage 0 that is the
// whole state.
absl::StatusOr<std::vector<BlockRange>> CopiedBlocks(
    const zero3::CheckpointPart& part, topology::Rank shard_rank) {
  zero3::StateShare share = {part.layout, shard_rank};
  if (part.stage == 0) {
    zero3::LayoutOptions options = part.layout.options();
    options.ranks = 1;
    share.rank = topology::Rank(0);
    TESSERA_ASSIGN_OR_RETURN(share.layout,
                             zero3::StateLayout::Create(part.model(), options));
  }
  return zero3::PlanBlocks(share, part.moment_kinds(), kBlockElements);
}

// Passes the blocks of `file` to `use`. `source` has those of `copied`, which
// include their elements, one after the other.
absl::Status ForEachBlock(const std::vector<BlockRange>& copied,
                          std::span<const std::byte> source,
                          const std::vector<BlockRange>& file,
                          zero3::BlockUse use) {
  std::vector<std::byte> bytes;
  auto from = copied.begin();
  for (const BlockRange& range : file) {
    bytes.resize(static_cast<size_t>(range.bytes()));
    for (int64_t at = range.begin; at < range.end;) {
      while (from->parameter != range.parameter || from->part != range.part ||
             from->end <= at) {
        source = source.subspan(static_cast<size_t>(from->bytes()));
        ++from;
      }
      const int64_t end = std::min(range.end, from->end);
      zero3::CopyElements(
          {from->format, from->begin, from->size(), source.data()},
          {range.format, range.begin, range.size(), bytes.data()}, at, end);
      at = end;
    }
    TESSERA_RETURN_IF_ERROR(use(range, bytes));
  }
  return absl::OkStatus();
}

// The description of a part at the step of a copy.
absl::StatusOr<std::string> DescribeAt(zero3::CheckpointPart part,
                                       const StateNumbers& numbers,
                                       zero3::CheckpointMetadata metadata,
                                       std::span<const std::byte> copy) {
  const std::string layers = TextAt(part.metadata, kFp8LayersKey);
  part.metadata.erase(std::string(kFp8LayersKey));
  if (!layers.empty() && metadata.contains(std::string(kHasScalesKey))) {
    TESSERA_ASSIGN_OR_RETURN(part.metadata[std::string(kFp8ScalesKey)],
                             FormatFp8Scales(layers, copy));
  }
  for (const std::string_view key :
       {kStateStepsKey, kLossScaleKey, kStepsOfScaleKey, kHasScalesKey}) {
    metadata.erase(std::string(key));
  }
  part.metadata.merge(std::move(metadata));
  part.loss_scale = numbers.loss_scale;
  part.steps_since_scale_change = numbers.steps_since_scale_change;
  return zero3::FormatPart(part);
}

// Adds the shards of a copy that was planned in this way.
absl::Status AddPlanned(const std::string& plan,
                        const zero3::CheckpointMetadata& metadata,
                        std::span<const std::byte> copy, zero3::SaveJob& job) {
  TESSERA_ASSIGN_OR_RETURN(const StateNumbers numbers, NumbersFrom(metadata));
  std::span<const std::byte> bytes = copy;
  for (const std::string_view line : absl::StrSplit(plan, '\n')) {
    TESSERA_ASSIGN_OR_RETURN(zero3::SaveReport report,
                             zero3::ParseReport(line));
    TESSERA_ASSIGN_OR_RETURN(const zero3::CheckpointPart part,
                             zero3::ParsePart(report.description));
    const topology::Rank shard_rank(report.shard_rank);
    TESSERA_ASSIGN_OR_RETURN(auto copied, CopiedBlocks(part, shard_rank));
    auto file = zero3::PlanBlocks({part.layout, shard_rank},
                                  part.moment_kinds(), kBlockElements);
    const auto size = static_cast<size_t>(BytesOf(copied));
    report.step = numbers.steps;
    const bool describes = report.writes && report.shard_rank == 0;
    report.description.clear();
    if (describes) {
      TESSERA_ASSIGN_OR_RETURN(report.description,
                               DescribeAt(part, numbers, metadata, copy));
    }
    job.shards.push_back(
        {std::move(report), [copied = std::move(copied), file = std::move(file),
                             source = bytes.first(size)](zero3::BlockUse use) {
           return ForEachBlock(copied, source, file, use);
         }});
    bytes = bytes.subspan(size);
  }
  return absl::OkStatus();
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

bool MemoryCopies::HasOwn(int64_t rank, int64_t sequence) const {
  const Offer* const own = Find(offers_[static_cast<size_t>(rank)], sequence);
  return own != nullptr && !own->own_form.empty();
}

// True if each rank has its own copy, or another rank holds one.
bool MemoryCopies::AreComplete(int64_t sequence) const {
  for (int64_t r = 0; r < size(); ++r) {
    if (!HasOwn(r, sequence) && !HolderOf(r, sequence).has_value()) {
      return false;
    }
  }
  return true;
}

std::optional<MemoryCopies::Copies> MemoryCopies::TakeFound() {
  for (std::optional<Copies>* copies : {&committed_, &pending_}) {
    if (copies->has_value() && (*copies)->sequence == found_) {
      return std::exchange(*copies, std::nullopt);
    }
  }
  return std::nullopt;
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
  TESSERA_RETURN_IF_ERROR(ExchangePlans(rank));
  return forms;
}

absl::Status MemoryCopies::ExchangePlans(TrainRank& rank) {
  const std::vector<zero3::CheckpointGroups> groups = CheckpointGroupsOf(rank);
  std::vector<std::string> lines;
  for (size_t i = 0; i < groups.size(); ++i) {
    const ShardedModel::Part& part = rank.model().parts()[i];
    zero3::CheckpointMetadata metadata = MetadataOfPart(rank, part);
    if (part.state.get() == &rank.state() &&
        rank.groups().tp->rank() == Rank(0) && rank.fp8() != nullptr) {
      metadata[std::string(kFp8LayersKey)] = DescribeFp8Layers(rank);
    }
    TESSERA_ASSIGN_OR_RETURN(
        const zero3::SaveReport report,
        zero3::DescribeShard(groups[i], *part.state, std::move(metadata)));
    lines.push_back(zero3::FormatReport(report));
  }
  own_plan_ = std::make_shared<const std::string>(absl::StrJoin(lines, "\n"));
  const Rank to((group_->rank().value() + distance_) % size());
  const Rank from((group_->rank().value() + size() - distance_) % size());
  const auto own_bytes = static_cast<int64_t>(own_plan_->size());
  int64_t held_bytes = 0;
  TESSERA_RETURN_IF_ERROR(group_->SendReceive(
      {&own_bytes, 1, DType::kI64}, to, {&held_bytes, 1, DType::kI64}, from));
  std::string held(static_cast<size_t>(held_bytes), ' ');
  TESSERA_RETURN_IF_ERROR(
      group_->SendReceive({own_plan_->data(), own_bytes, DType::kU8}, to,
                          {held.data(), held_bytes, DType::kU8}, from));
  held_plan_ = std::make_shared<const std::string>(std::move(held));
  return absl::OkStatus();
}

// True if all copies that Restore would use have the forms of the states.
bool MemoryCopies::FormsAreEqual(const std::vector<std::string>& forms) const {
  for (size_t r = 0; r < forms.size(); ++r) {
    const auto rank = static_cast<int64_t>(r);
    if (HasOwn(rank, found_)) {
      if (Find(offers_[r], found_)->own_form != forms[r]) return false;
      continue;
    }
    // Exists, because the copies are complete.
    const int64_t holder = *HolderOf(rank, found_);
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
  Copies copies = TakeFound().value_or(Copies());
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
    if (HasOwn(r, found_)) continue;
    const int64_t holder = *HolderOf(r, found_);
    if (self == holder) {
      TESSERA_RETURN_IF_ERROR(group_->Send(Sent(copies.held), Rank(r)));
    }
    if (self != r) continue;
    const Offer& offer = *Find(offers_[static_cast<size_t>(holder)], found_);
    copies.sequence = found_;
    copies.metadata = offer.metadata;
    copies.own_form = offer.held_form;
    copies.own_plan = own_plan_;
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
  TESSERA_ASSIGN_OR_RETURN(const StateNumbers numbers,
                           NumbersFrom(copies.metadata));
  std::span<const std::byte> bytes = copies.own.bytes();
  for (size_t i = 0; i < blocks_.size(); ++i) {
    zero3::ShardedState& state = *rank.model().parts()[i].state;
    const auto size = static_cast<size_t>(BytesOf(blocks_[i]));
    TESSERA_RETURN_IF_ERROR(
        zero3::WriteBlocks(state, blocks_[i], bytes.first(size)));
    bytes = bytes.subspan(size);
    TESSERA_RETURN_IF_ERROR(state.optimizer().Settle());
    state.scaler().Restore(numbers.loss_scale,
                           numbers.steps_since_scale_change);
  }
  if (rank.fp8() != nullptr) {
    zero3::ShardedState& state = rank.state();
    TESSERA_RETURN_IF_ERROR(state.staging().Upload(bytes, ScalesOf(rank)));
    TESSERA_RETURN_IF_ERROR(state.queue().Synchronize());
    rank.fp8()->set_has_history(
        !TextAt(copies.metadata, kHasScalesKey).empty());
  }
  rank.SetProgress(std::move(progress));
  return numbers.steps;
}

absl::Status MemoryCopies::AddShards(const Copies& copies,
                                     zero3::SaveJob& job) const {
  const int64_t self = group_->rank().value();
  for (int64_t r = 0; r < size(); ++r) {
    if (r == self && HasOwn(r, found_)) {
      TESSERA_RETURN_IF_ERROR(AddPlanned(*copies.own_plan, copies.metadata,
                                         copies.own.bytes(), job));
    } else if (!HasOwn(r, found_) && HolderOf(r, found_) == self) {
      TESSERA_RETURN_IF_ERROR(AddPlanned(*copies.held_plan, copies.metadata,
                                         copies.held.bytes(), job));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> MemoryCopies::Save(
    const RunCheckpointOptions& options) {
  if (found_ == 0) return "";
  const absl::Duration timeout = options.timeout;
  const std::optional<Copies> copies = TakeFound();
  zero3::SaveJob job = {
      .directory = options.directory,
      .keep = options.keep,
      .keep_least = options.keep_best ? std::string(kEvalLossKey) : "",
      .timeout = timeout,
      .files = options.files == nullptr ? &zero3::FileCalls::System()
                                        : options.files};
  const absl::Status planned =
      copies.has_value() ? AddShards(*copies, job) : absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(
      collectives::AgreeOnStatus(*group_, planned, timeout));
  // Ranks without a copy write nothing.
  std::vector<Rank> writers;
  for (int64_t r = 0; r < size(); ++r) {
    if (HasOwn(r, found_)) writers.emplace_back(r);
  }
  absl::StatusOr<std::string> path = std::string();
  if (!job.shards.empty()) path = Write(writers, std::move(job));
  TESSERA_RETURN_IF_ERROR(
      collectives::AgreeOnStatus(*group_, path.status(), timeout));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                           collectives::ExchangeTexts(*group_, *path, timeout));
  return paths[static_cast<size_t>(writers[0].value())];
}

// A collective of the writers. The first one selects a checkpoint that exists,
// if it is not older than the copies.
absl::StatusOr<std::string> MemoryCopies::Write(
    const std::vector<Rank>& writers, zero3::SaveJob job) {
  TESSERA_ASSIGN_OR_RETURN(
      const auto group,
      group_->Subgroup(writers, absl::StrCat(group_->name(), "/save")));
  const auto latest = zero3::LatestCheckpoint(job.directory);
  const bool is_saved =
      latest.ok() && latest->step >= job.shards[0].report.step;
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> paths,
      collectives::ExchangeTexts(*group, is_saved ? latest->path : "",
                                 job.timeout));
  return paths[0].empty() ? zero3::RunSaveJob(*group, std::move(job))
                          : paths[0];
}

absl::Status MemoryCopies::Take(TrainRank& rank,
                                zero3::CheckpointMetadata metadata) {
  TESSERA_RETURN_IF_ERROR(Finish());
  if (pending_.has_value()) spare_ = std::move(pending_);
  pending_.emplace();
  Copies& copies = *pending_;
  copies.sequence = ++sequence_;
  AddTo(ProgressToSave(rank), metadata);
  zero3::ShardedState& dense = rank.state();
  metadata[std::string(kStateStepsKey)] = absl::StrCat(dense.steps());
  metadata[std::string(kLossScaleKey)] =
      absl::StrFormat("%.17g", dense.scaler().scale());
  metadata[std::string(kStepsOfScaleKey)] =
      absl::StrCat(dense.scaler().steps_since_change());
  if (rank.fp8() != nullptr && rank.fp8()->has_history()) {
    metadata[std::string(kHasScalesKey)] = "true";
  }
  copies.metadata = std::move(metadata);
  copies.own_plan = own_plan_;
  copies.held_plan = held_plan_;
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
