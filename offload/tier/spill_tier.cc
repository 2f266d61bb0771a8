#include "offload/tier/spill_tier.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::offload {

SpillTier::SpillTier(std::shared_ptr<MemoryTier> near,
                     std::shared_ptr<MemoryTier> far)
    : near_(std::move(near)),
      far_(std::move(far)),
      name_(absl::StrCat(near_->name(), " over ", far_->name())) {}

Operation SpillTier::PutFar(std::string_view key,
                            std::span<const std::byte> bytes, BlockInfo info,
                            const absl::Status& near) const {
  Operation put = far_->StartPut(key, bytes, info);
  if (near.ok() || !put.Test()) return put;
  const absl::Status status = put.Wait();
  if (!absl::IsResourceExhausted(status)) return Operation(status);
  return Operation(absl::ResourceExhaustedError(
      absl::StrCat(near.message(), "; and ", status.message())));
}

Operation SpillTier::StartPut(std::string_view key,
                              std::span<const std::byte> bytes,
                              BlockInfo info) {
  if (absl::Status bad = CheckBlock(name_, key, info); !bad.ok()) {
    return Operation(std::move(bad));
  }
  {
    absl::ReaderMutexLock lock(&mutex_);
    const bool in_near = near_->Contains(key);
    if (!in_near && (is_short_ || far_->Contains(key))) {
      return PutFar(key, bytes, info, absl::OkStatus());
    }
    absl::Status status = near_->Put(key, bytes, info);
    if (!absl::IsResourceExhausted(status)) return Operation(std::move(status));
    if (!in_near) return PutFar(key, bytes, info, status);
  }
  return Operation(Replace(key, bytes, info));
}

// Puts a block that outgrew the near tier into the far one.
absl::Status SpillTier::Replace(std::string_view key,
                                std::span<const std::byte> bytes,
                                BlockInfo info) {
  absl::MutexLock lock(&mutex_);
  const absl::Status near = near_->Put(key, bytes, info);
  if (!absl::IsResourceExhausted(near)) return near;
  TESSERA_RETURN_IF_ERROR(PutFar(key, bytes, info, near).Wait());
  return near_->Contains(key) ? near_->Drop(key) : absl::OkStatus();
}

Operation SpillTier::StartRead(std::string_view key,
                               std::optional<int64_t> offset,
                               std::span<std::byte> out) {
  absl::ReaderMutexLock lock(&mutex_);
  MemoryTier& tier = near_->Contains(key) ? *near_ : *far_;
  if (!tier.Contains(key)) return Operation(NoSuchBlock(name_, key));
  return offset.has_value() ? tier.StartGetRange(key, *offset, out)
                            : tier.StartGet(key, out);
}

absl::Status SpillTier::Drop(std::string_view key) {
  absl::MutexLock lock(&mutex_);
  if (const auto view = views_.find(key); view != views_.end()) {
    views_.erase(view);
  }
  const absl::Status near = near_->Drop(key);
  const absl::Status far = far_->Drop(key);
  if (absl::IsNotFound(near) && absl::IsNotFound(far)) {
    return NoSuchBlock(name_, key);
  }
  if (!absl::IsNotFound(near)) TESSERA_RETURN_IF_ERROR(near);
  return absl::IsNotFound(far) ? absl::OkStatus() : far;
}

absl::StatusOr<BlockStat> SpillTier::Stat(std::string_view key) const {
  absl::ReaderMutexLock lock(&mutex_);
  for (const MemoryTier* tier : {near_.get(), far_.get()}) {
    absl::StatusOr<BlockStat> stat = tier->Stat(key);
    if (!absl::IsNotFound(stat.status())) return stat;
  }
  return NoSuchBlock(name_, key);
}

std::vector<std::string> SpillTier::Keys() const {
  absl::ReaderMutexLock lock(&mutex_);
  std::set<std::string> keys;
  for (const MemoryTier* tier : {near_.get(), far_.get()}) {
    for (std::string& key : tier->Keys()) keys.insert(std::move(key));
  }
  return {keys.begin(), keys.end()};
}

std::vector<TierUsage> SpillTier::usage() const {
  std::vector<TierUsage> usage = near_->usage();
  for (TierUsage& far : far_->usage()) usage.push_back(std::move(far));
  return usage;
}

bool SpillTier::IsLossless(Purpose purpose, DType dtype) const {
  return near_->IsLossless(purpose, dtype) && far_->IsLossless(purpose, dtype);
}

BlockView SpillTier::Hold(std::string_view key, BlockView view) {
  // All views of a block share a token.
  std::weak_ptr<const void>& views = views_[std::string(key)];
  std::shared_ptr<const void> token = views.lock();
  if (token == nullptr) token = std::make_shared<int>();
  views = token;
  view.hold = std::make_shared<
      std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
      std::move(view.hold), std::move(token));
  return view;
}

absl::StatusOr<BlockView> SpillTier::Map(std::string_view key) {
  absl::MutexLock lock(&mutex_);
  if (near_->Contains(key)) {
    TESSERA_ASSIGN_OR_RETURN(BlockView view, near_->Map(key));
    return Hold(key, std::move(view));
  }
  if (!far_->Contains(key)) return NoSuchBlock(name_, key);
  return MemoryTier::Map(key);
}

absl::StatusOr<BlockView> SpillTier::MapNew(std::string_view key, int64_t bytes,
                                            BlockInfo info) {
  absl::MutexLock lock(&mutex_);
  if (is_short_ || far_->Contains(key)) {
    return MemoryTier::MapNew(key, bytes, info);
  }
  absl::StatusOr<BlockView> view = near_->MapNew(key, bytes, info);
  if (absl::IsResourceExhausted(view.status())) {
    return MemoryTier::MapNew(key, bytes, info);
  }
  TESSERA_RETURN_IF_ERROR(view.status());
  return Hold(key, *std::move(view));
}

std::vector<SpillTier::Movable> SpillTier::MovableBlocks() const {
  std::vector<Movable> blocks;
  for (std::string& key : near_->Keys()) {
    const absl::StatusOr<BlockStat> stat = near_->Stat(key);
    const auto view = views_.find(key);
    const bool is_in_use = view != views_.end() && !view->second.expired();
    if (!stat.ok() || stat->held_bytes == 0 || is_in_use) continue;
    blocks.push_back({std::move(key), stat->held_bytes});
  }
  std::stable_sort(
      blocks.begin(), blocks.end(),
      [](const Movable& a, const Movable& b) { return a.bytes > b.bytes; });
  return blocks;
}

absl::StatusOr<int64_t> SpillTier::Spill(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  return SpillLocked(bytes);
}

absl::StatusOr<int64_t> SpillTier::SpillLocked(int64_t bytes) {
  int64_t moved = 0;
  for (const auto& [key, held] : MovableBlocks()) {
    if (moved >= bytes) break;
    const std::string context =
        absl::StrCat("moving block ", QuoteKey(key), " to tier ", far_->name());
    TESSERA_ASSIGN_OR_RETURN(const BlockStat stat, near_->Stat(key),
                             Annotate(_, context));
    TESSERA_ASSIGN_OR_RETURN(BlockView view, near_->Map(key),
                             Annotate(_, context));
    TESSERA_RETURN_IF_ERROR(far_->Put(key, view.bytes, stat.info),
                            Annotate(_, context));
    view = {};
    TESSERA_RETURN_IF_ERROR(near_->Drop(key), Annotate(_, context));
    moved += held;
  }
  return moved;
}

absl::StatusOr<int64_t> SpillTier::Relieve(const PressurePolicy& policy,
                                           const MemoryReading& reading) {
  absl::MutexLock lock(&mutex_);
  is_short_ = PressureOf(reading, {}) >= policy.threshold();
  int64_t movable = 0;
  for (const Movable& block : MovableBlocks()) movable += block.bytes;
  return SpillLocked(policy.BytesToMove(reading, movable));
}

}  // namespace tessera::offload
