#include "collectives/engine/operation_context.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::collectives {

namespace {

constexpr std::align_val_t kAlignment{64};
constexpr int64_t kSmallestBlock = 64 << 10;

constexpr int64_t RoundUp(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

void Scratch::Free::operator()(std::byte* memory) const {
  ::operator delete[](memory, kAlignment);
}

absl::StatusOr<std::span<std::byte>> Scratch::Allocate(int64_t bytes) {
  if (bytes < 0 || bytes > int64_t{1} << 60) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot allocate ", bytes, " bytes of working memory; use 0 to 2^60"));
  }
  const int64_t rounded = RoundUp(bytes);
  // Uses the fullest block with enough room, so that small requests do not take
  // the largest block.
  Block* fullest = nullptr;
  for (Block& block : blocks_) {
    if (block.left() < rounded) continue;
    if (fullest == nullptr || block.left() < fullest->left()) fullest = &block;
  }
  if (fullest != nullptr) {
    std::byte* start = fullest->memory.get() + fullest->used;
    fullest->used += rounded;
    return std::span(start, static_cast<size_t>(bytes));
  }
  Block block;
  block.size = std::max(rounded, kSmallestBlock);
  block.memory.reset(static_cast<std::byte*>(::operator new[](
      static_cast<size_t>(block.size), kAlignment, std::nothrow)));
  if (block.memory == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "out of memory: cannot allocate ", bytes, " bytes of working memory"));
  }
  block.used = rounded;
  held_bytes_ += block.size;
  blocks_.push_back(std::move(block));
  return std::span(blocks_.back().memory.get(), static_cast<size_t>(bytes));
}

void Scratch::Reset() {
  if (blocks_.empty()) return;
  // Keeps the largest blocks, so that one block serves the next operation.
  std::sort(blocks_.begin(), blocks_.end(),
            [](const Block& a, const Block& b) { return a.size > b.size; });
  int64_t kept = 0;
  std::erase_if(blocks_, [&](const Block& block) {
    if (kept + block.size > kept_bytes_) return true;
    kept += block.size;
    return false;
  });
  held_bytes_ = kept;
  for (Block& block : blocks_) block.used = 0;
}

std::string_view PhaseName(Phase phase) {
  constexpr std::array<std::string_view, 7> kNames = {
      "idle",     "entering", "sending", "receiving",
      "reducing", "copying",  "leaving"};
  const auto index = static_cast<size_t>(phase);
  return index < kNames.size() ? kNames[index] : "in an unknown phase";
}

int64_t MonotonicNanos() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

int64_t DeadlineAfter(absl::Duration timeout) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  const int64_t now = MonotonicNanos();
  const int64_t nanos = absl::ToInt64Nanoseconds(timeout);  // Saturates.
  return nanos > kNever - now ? kNever : now + nanos;
}

}  // namespace tessera::collectives
