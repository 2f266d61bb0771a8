#include "offload/tier/layered_tier.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::offload {

// The right to work on one key. What `entry` says at the end is what holds
// then; a key that is in neither tier is forgotten.
class LayeredTier::Claim {
 public:
  enum class IfAbsent { kNothing, kMake };

  // Waits for whoever has it.
  Claim(LayeredTier& tier, std::string_view key, IfAbsent if_absent)
      : tier_(tier), key_(key) {
    absl::MutexLock lock(&tier_.mutex_);
    const auto idle = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      const auto found = tier_.entries_.find(key_);
      return found == tier_.entries_.end() || !found->second.busy;
    };
    tier_.mutex_.Await(absl::Condition(&idle));
    if (if_absent == IfAbsent::kMake) {
      const auto [made, is_new] = tier_.entries_.try_emplace(key_);
      if (is_new) made->second.views = std::make_shared<int>(0);
    }
    Take();
  }

  // Of a key that nobody has, whose tier is locked.
  Claim(LayeredTier& tier, std::string_view key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tier.mutex_)
      : tier_(tier), key_(key) {
    Take();
  }

  ~Claim() {
    if (!has_) return;
    absl::MutexLock lock(&tier_.mutex_);
    const auto found = tier_.entries_.find(key_);
    if (!entry.in_front && entry.back == Back::kNone) {
      tier_.entries_.erase(found);
      return;
    }
    found->second = entry;
    found->second.busy = false;
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  bool has() const { return has_; }

  Entry entry;

 private:
  void Take() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const auto found = tier_.entries_.find(key_);
    if (found == tier_.entries_.end()) return;
    has_ = true;
    found->second.busy = true;
    found->second.last_use = ++tier_.clock_;
    entry = found->second;
  }

  LayeredTier& tier_;
  const std::string key_;
  bool has_ = false;
};

absl::StatusOr<std::unique_ptr<LayeredTier>> LayeredTier::Create(
    std::shared_ptr<MemoryTier> front, std::shared_ptr<MemoryTier> back,
    Options options) {
  if (!front->Keys().empty() ||
      absl::IsUnimplemented(front->Map("probe").status())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tier ", front->name(),
        " cannot be the front of a "
        "layered tier: that is empty, and can Map, as a HostTier"));
  }
  std::unique_ptr<LayeredTier> tier(
      new LayeredTier(std::move(front), std::move(back), std::move(options)));
  absl::MutexLock lock(&tier->mutex_);
  for (const std::string& key : tier->back_->Keys()) {
    TESSERA_ASSIGN_OR_RETURN(const BlockStat stat, tier->back_->Stat(key));
    Entry& entry = tier->entries_[key];
    entry.bytes = stat.bytes;
    entry.info = stat.info;
    entry.back = Back::kCurrent;
    entry.views = std::make_shared<int>(0);
  }
  return tier;
}

LayeredTier::LayeredTier(std::shared_ptr<MemoryTier> front,
                         std::shared_ptr<MemoryTier> back, Options options)
    : front_(std::move(front)),
      back_(std::move(back)),
      options_(std::move(options)),
      name_(absl::StrCat(front_->name(), " before ", back_->name())),
      workers_(options_.threads) {}

Operation LayeredTier::StartPut(std::string_view key,
                                std::span<const std::byte> bytes,
                                BlockInfo info) {
  absl::Status bad = CheckBlock(name_, key, info);
  if (!bad.ok()) return Operation(std::move(bad));
  return workers_.Run([this, key = std::string(key), bytes, info] {
    return PutNow(key, bytes, info);
  });
}

absl::Status LayeredTier::PutNow(const std::string& key,
                                 std::span<const std::byte> bytes,
                                 BlockInfo info) {
  Claim claim(*this, key, Claim::IfAbsent::kMake);
  Entry& entry = claim.entry;
  absl::StatusOr<bool> in_front = PutInFront(key, bytes, info);
  if (in_front.ok() && *in_front) {
    entry.in_front = true;
    if (entry.back == Back::kCurrent) entry.back = Back::kStale;
  } else {
    TESSERA_RETURN_IF_ERROR(back_->Put(key, bytes, info));
    if (entry.in_front) front_->Drop(key).IgnoreError();
    entry.in_front = false;
    entry.back = Back::kCurrent;
  }
  entry.bytes = static_cast<int64_t>(bytes.size());
  entry.info = info;
  return absl::OkStatus();
}

// False where there is no room and nothing may leave.
absl::StatusOr<bool> LayeredTier::PutInFront(const std::string& key,
                                             std::span<const std::byte> bytes,
                                             BlockInfo info) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (size > front_->usage().front().usage.budget) return false;
  while (true) {
    absl::Status status = front_->Put(key, bytes, info);
    if (status.ok()) return true;
    if (!absl::IsResourceExhausted(status)) return status;
    TESSERA_ASSIGN_OR_RETURN(const bool left, EvictOne(key));
    if (!left) return false;
  }
}

std::optional<std::string> LayeredTier::PickVictim(std::string_view incoming) {
  std::vector<VictimCandidate> candidates;
  for (const auto& [key, entry] : entries_) {
    if (entry.in_front && !entry.busy && *entry.views == 0 && entry.bytes > 0) {
      candidates.push_back(
          {key, entry.bytes, entry.last_use, entry.back != Back::kCurrent});
    }
  }
  if (candidates.empty()) return std::nullopt;
  const std::optional<size_t> pick = options_.victims(candidates, incoming);
  if (!pick.has_value() || *pick >= candidates.size()) return std::nullopt;
  return std::string(candidates[*pick].key);
}

// False where nothing may leave.
absl::StatusOr<bool> LayeredTier::EvictOne(std::string_view incoming) {
  std::optional<Claim> victim;
  std::string key;
  {
    absl::MutexLock lock(&mutex_);
    std::optional<std::string> pick = PickVictim(incoming);
    if (!pick.has_value()) return false;
    key = *std::move(pick);
    victim.emplace(*this, key);
  }
  TESSERA_RETURN_IF_ERROR(WriteBack(key, victim->entry));
  TESSERA_RETURN_IF_ERROR(front_->Drop(key));
  victim->entry.in_front = false;
  return true;
}

absl::Status LayeredTier::WriteBack(const std::string& key, Entry& entry) {
  if (!entry.in_front || entry.back == Back::kCurrent) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const BlockView view, front_->Map(key));
  TESSERA_RETURN_IF_ERROR(back_->Put(key, view.bytes, entry.info));
  entry.back = Back::kCurrent;
  return absl::OkStatus();
}

Operation LayeredTier::StartRead(std::string_view key,
                                 std::optional<int64_t> offset,
                                 std::span<std::byte> out) {
  return workers_.Run([this, key = std::string(key), offset, out] {
    Claim claim(*this, key, Claim::IfAbsent::kNothing);
    return ReadNow(claim, key, offset, out);
  });
}

absl::Status LayeredTier::ReadNow(Claim& claim, const std::string& key,
                                  std::optional<int64_t> offset,
                                  std::span<std::byte> out) {
  if (!claim.has()) return NoSuchBlock(name_, key);
  MemoryTier& tier = claim.entry.in_front ? *front_ : *back_;
  return offset.has_value() ? tier.GetRange(key, *offset, out)
                            : tier.Get(key, out);
}

absl::StatusOr<bool> LayeredTier::BringForward(const std::string& key,
                                               Entry& entry) {
  if (entry.in_front) return true;
  if (entry.bytes > front_->usage().front().usage.budget) return false;
  absl::StatusOr<BlockView> view = front_->MapNew(key, entry.bytes, entry.info);
  while (absl::IsResourceExhausted(view.status())) {
    TESSERA_ASSIGN_OR_RETURN(const bool left, EvictOne(key));
    if (!left) return false;
    view = front_->MapNew(key, entry.bytes, entry.info);
  }
  TESSERA_RETURN_IF_ERROR(view.status());
  absl::Status read = back_->Get(key, view->bytes);
  if (!read.ok()) {
    front_->Drop(key).IgnoreError();
    return read;
  }
  entry.in_front = true;
  return true;
}

Operation LayeredTier::StartPrefetch(std::string_view key) {
  return workers_.Run([this, key = std::string(key)]() -> absl::Status {
    Claim claim(*this, key, Claim::IfAbsent::kNothing);
    if (!claim.has()) return NoSuchBlock(name_, key);
    return BringForward(key, claim.entry).status();
  });
}

absl::StatusOr<BlockView> LayeredTier::Map(std::string_view key) {
  const std::string name(key);
  Claim claim(*this, key, Claim::IfAbsent::kNothing);
  if (!claim.has()) return NoSuchBlock(name_, key);
  Entry& entry = claim.entry;
  TESSERA_ASSIGN_OR_RETURN(const bool near, BringForward(name, entry));
  if (!near) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "tier ", name_, ": block ", QuoteKey(key), " of ", entry.bytes,
        " bytes cannot come to the front (budget ",
        front_->usage().front().usage.budget,
        " bytes): nothing may leave for it. Let views go, or raise the budget "
        "of tier ",
        front_->name()));
  }
  TESSERA_ASSIGN_OR_RETURN(BlockView view, front_->Map(key));
  // Whoever holds it may write.
  if (entry.back == Back::kCurrent) entry.back = Back::kStale;
  absl::MutexLock lock(&mutex_);
  ++*entry.views;
  view.hold = std::shared_ptr<const void>(
      view.hold.get(),
      [this, views = entry.views, inner = view.hold](const void*) {
        absl::MutexLock release(&mutex_);
        --*views;
      });
  return view;
}

absl::Status LayeredTier::Drop(std::string_view key) {
  Claim claim(*this, key, Claim::IfAbsent::kNothing);
  if (!claim.has()) return NoSuchBlock(name_, key);
  Entry& entry = claim.entry;
  if (entry.back != Back::kNone) {
    TESSERA_RETURN_IF_ERROR(back_->Drop(key));
    entry.back = Back::kNone;
  }
  if (entry.in_front) front_->Drop(key).IgnoreError();
  entry.in_front = false;
  return absl::OkStatus();
}

absl::StatusOr<BlockStat> LayeredTier::Stat(std::string_view key) const {
  BlockStat stat;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = entries_.find(key);
    if (found == entries_.end() ||
        (!found->second.in_front && found->second.back == Back::kNone)) {
      return NoSuchBlock(name_, key);
    }
    stat.bytes = found->second.bytes;
    stat.info = found->second.info;
  }
  for (const auto& tier : {front_, back_}) {
    const absl::StatusOr<BlockStat> part = tier->Stat(key);
    if (part.ok()) stat.held_bytes += part->held_bytes;
  }
  return stat;
}

std::vector<std::string> LayeredTier::Keys() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> keys;
  for (const auto& [key, entry] : entries_) {
    if (entry.in_front || entry.back != Back::kNone) keys.push_back(key);
  }
  return keys;
}

std::vector<TierUsage> LayeredTier::usage() const {
  std::vector<TierUsage> usage = front_->usage();
  for (TierUsage& below : back_->usage()) usage.push_back(std::move(below));
  return usage;
}

bool LayeredTier::InFront(std::string_view key) const {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(key);
  return found != entries_.end() && found->second.in_front;
}

absl::Status LayeredTier::Flush() {
  for (const std::string& key : Keys()) {
    Claim claim(*this, key, Claim::IfAbsent::kNothing);
    if (!claim.has()) continue;
    TESSERA_RETURN_IF_ERROR(WriteBack(key, claim.entry));
  }
  return back_->Flush();
}

}  // namespace tessera::offload
