#include "tools/train/loop/collective_log.h"

namespace tessera::train {
namespace {

constexpr size_t kMost = size_t{1} << 20;

}  // namespace

void CollectiveLog::Add(const LoggedCollective& one) {
  const std::lock_guard lock(mutex_);
  if (entries_.size() < kMost) entries_.push_back(one);
}

std::vector<LoggedCollective> CollectiveLog::Take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(entries_, {});
}

void CollectiveLog::SetOn(bool on) {
  const std::lock_guard lock(mutex_);
  is_on_ = on;
}

bool CollectiveLog::is_on() const {
  const std::lock_guard lock(mutex_);
  return is_on_;
}

void CollectiveLog::AbortAll(const absl::Status& reason) {
  const std::lock_guard lock(engines_mutex_);
  for (collectives::Engine* engine : engines_) engine->Abort(reason);
}

void CollectiveLog::Join(collectives::Engine* engine) {
  const std::lock_guard lock(engines_mutex_);
  engines_.insert(engine);
}

void CollectiveLog::Leave(collectives::Engine* engine) {
  const std::lock_guard lock(engines_mutex_);
  engines_.erase(engine);
}

}  // namespace tessera::train
