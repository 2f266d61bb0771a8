#include "offload/prefetch/testing/slow_tier.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::offload {
namespace {

using Clock = std::chrono::steady_clock;

int64_t NowNs() {
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

void SleepUntil(int64_t ns) {
  std::this_thread::sleep_until(
      Clock::time_point(std::chrono::nanoseconds(ns)));
}

}  // namespace

SlowTier::SlowTier(Options options) : options_(options) {
  for (int i = 0; i < options_.lanes; ++i) {
    threads_.emplace_back([this] { Work(); });
  }
}

SlowTier::~SlowTier() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    held_ = false;
  }
  for (std::thread& thread : threads_) thread.join();
}

void SlowTier::Work() {
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return closing_ || (!queue_.empty() && !held_);
  };
  while (true) {
    std::function<void()> act;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&ready));
      if (queue_.empty()) return;
      act = std::move(queue_.front());
      queue_.pop_front();
    }
    act();
  }
}

Operation SlowTier::Start(std::string what, int64_t bytes, int64_t& channel_ns,
                          std::function<absl::Status()> act) {
  auto [operation, completion] = Operation::Pending();
  absl::MutexLock lock(&mutex_);
  starts_.push_back(std::move(what));
  most_in_flight_ = std::max(most_in_flight_, ++in_flight_);
  queue_.push_back([this, bytes, &channel_ns, act = std::move(act),
                    completion = completion] {
    SleepUntil(NowNs() + options_.latency_ns);
    absl::Status status;
    int64_t end_ns = 0;
    {
      absl::MutexLock lock(&mutex_);
      status = act();
      if (options_.bytes_per_second > 0) {
        channel_ns = std::max(channel_ns, NowNs()) +
                     bytes * 1'000'000'000 / options_.bytes_per_second;
        end_ns = channel_ns;
      }
    }
    SleepUntil(end_ns);
    {
      absl::MutexLock lock(&mutex_);
      --in_flight_;
    }
    completion.Finish(status);
  });
  return std::move(operation);
}

absl::Status SlowTier::TakeFault(Faults& faults, std::string_view key) {
  const auto fault = faults.find(key);
  if (fault == faults.end()) return absl::OkStatus();
  absl::Status status = fault->second;
  faults.erase(fault);
  return status;
}

Operation SlowTier::StartPut(std::string_view key,
                             std::span<const std::byte> bytes, BlockInfo info) {
  return Start(absl::StrCat("put ", key), static_cast<int64_t>(bytes.size()),
               put_channel_ns_,
               [this, key = std::string(key), bytes, info]()
                   ABSL_NO_THREAD_SAFETY_ANALYSIS {
                     absl::Status fault = TakeFault(put_faults_, key);
                     if (fault.ok()) {
                       entries_[key] = {{bytes.begin(), bytes.end()}, info};
                     }
                     return fault;
                   });
}

Operation SlowTier::StartRead(std::string_view key,
                              std::optional<int64_t> offset,
                              std::span<std::byte> out) {
  return Start(
      absl::StrCat("get ", key), static_cast<int64_t>(out.size()),
      get_channel_ns_,
      [this, key = std::string(key), offset, out]()
          ABSL_NO_THREAD_SAFETY_ANALYSIS {
            absl::Status status = TakeFault(get_faults_, key);
            const auto entry = entries_.find(key);
            if (!status.ok()) return status;
            if (entry == entries_.end()) return NoSuchBlock("slow", key);
            const std::vector<std::byte>& bytes = entry->second.bytes;
            status = CheckRange("slow", key, static_cast<int64_t>(bytes.size()),
                                offset, out.size());
            if (status.ok() && !out.empty()) {
              std::memcpy(out.data(), bytes.data() + offset.value_or(0),
                          out.size());
            }
            return status;
          });
}

absl::Status SlowTier::Drop(std::string_view key) {
  absl::MutexLock lock(&mutex_);
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return NoSuchBlock("slow", key);
  entries_.erase(entry);
  return absl::OkStatus();
}

absl::StatusOr<BlockStat> SlowTier::Stat(std::string_view key) const {
  absl::MutexLock lock(&mutex_);
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return NoSuchBlock("slow", key);
  const auto bytes = static_cast<int64_t>(entry->second.bytes.size());
  return BlockStat{bytes, bytes, entry->second.info};
}

std::vector<std::string> SlowTier::Keys() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> keys;
  for (const auto& [key, entry] : entries_) keys.push_back(key);
  return keys;
}

void SlowTier::FailGet(std::string_view key, absl::Status status) {
  absl::MutexLock lock(&mutex_);
  get_faults_[std::string(key)] = std::move(status);
}

void SlowTier::FailPut(std::string_view key, absl::Status status) {
  absl::MutexLock lock(&mutex_);
  put_faults_[std::string(key)] = std::move(status);
}

void SlowTier::ForgetFaults() {
  absl::MutexLock lock(&mutex_);
  get_faults_.clear();
  put_faults_.clear();
}

void SlowTier::Hold(bool held) {
  absl::MutexLock lock(&mutex_);
  held_ = held;
}

std::vector<std::string> SlowTier::starts() const {
  absl::MutexLock lock(&mutex_);
  return starts_;
}

void SlowTier::ForgetStarts() {
  absl::MutexLock lock(&mutex_);
  starts_.clear();
  most_in_flight_ = in_flight_;
}

int SlowTier::most_in_flight() const {
  absl::MutexLock lock(&mutex_);
  return most_in_flight_;
}

}  // namespace tessera::offload
