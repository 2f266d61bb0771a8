#include "collectives/adaptive/decision_memo.h"

namespace tessera::collectives {
namespace {

size_t HashOf(const ChoiceQuestion& question) {
  uint64_t hash = static_cast<uint64_t>(question.bytes);
  hash = hash * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(question.ranks);
  hash = hash * 0x9e3779b97f4a7c15 +
         static_cast<uint64_t>(question.ranks_per_host);
  hash = hash * 0x9e3779b97f4a7c15 +
         (static_cast<uint64_t>(question.kind) << 16 |
          static_cast<uint64_t>(question.dtype) << 8 |
          (question.uneven ? 4u : 0u) | (question.engine_implements ? 2u : 0u) |
          (question.has_transport ? 1u : 0u));
  hash *= 0xbf58476d1ce4e5b9;
  return static_cast<size_t>(hash ^ hash >> 32);
}

}  // namespace

std::optional<Algorithm> DecisionMemo::Find(
    const ChoiceQuestion& question) const {
  for (size_t at = HashOf(question);; ++at) {
    const Decision* decision =
        slots_[at % kSlots].load(std::memory_order_acquire);
    if (decision == nullptr) return std::nullopt;
    if (decision->question == question) return decision->algorithm;
  }
}

void DecisionMemo::Keep(const ChoiceQuestion& question, Algorithm algorithm) {
  const std::lock_guard lock(mutex_);
  if (decisions_.size() == kMaxDecisions) return;
  size_t at = HashOf(question);
  for (;; ++at) {
    const Decision* decision =
        slots_[at % kSlots].load(std::memory_order_relaxed);
    if (decision == nullptr) break;
    if (decision->question == question) return;
  }
  decisions_.push_back(
      std::make_unique<const Decision>(Decision{question, algorithm}));
  slots_[at % kSlots].store(decisions_.back().get(), std::memory_order_release);
}

}  // namespace tessera::collectives
