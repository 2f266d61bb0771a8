#include "offload/prefetch/step_recorder.h"

#include <algorithm>
#include <utility>

namespace tessera::offload {

void StepRecorder::Begin(std::string_view key, int64_t bytes, int64_t now_ns,
                         bool overwrite) {
  if (!order_.empty()) {
    order_.back().compute_ns = std::max<int64_t>(asked_ns_ - began_ns_, 0);
  }
  open_.try_emplace(std::string(key)).first->second.push_back(order_.size());
  order_.push_back(
      {.key = std::string(key), .bytes = bytes, .overwrite = overwrite});
  began_ns_ = now_ns;
}

void StepRecorder::End(std::string_view key, bool dirty) {
  const auto open = open_.find(key);
  if (open == open_.end()) return;
  const size_t use = open->second.back();
  open->second.pop_back();
  if (open->second.empty()) open_.erase(open);
  order_[use].dirty = dirty;
  order_[use].held = static_cast<int64_t>(order_.size() - 1 - use);
}

std::vector<BlockUse> StepRecorder::Take(int64_t now_ns) {
  if (!order_.empty()) {
    order_.back().compute_ns = std::max<int64_t>(now_ns - began_ns_, 0);
  }
  open_.clear();
  return std::exchange(order_, {});
}

}  // namespace tessera::offload
