// TierLog: the calls of a rank's thread to its memory tiers, and the operations
// that these had in flight meanwhile.
//
//   auto log = std::make_shared<TierLog>();  // on the rank's thread
//   TimedTier tier(file_tier, log);
//   ...  // a step
//   log->Stamp();
//   const TierTime time = log->Take();
//
// Waiting for an operation cannot be observed directly. It is inferred: the
// thread waits if it neither runs nor is ready to run. Each stamp, taken at
// every call of a tier, reads how long the thread has run and how long it was
// ready without a processor (from /proc/thread-self/schedstat; 0 if that does
// not exist).
#ifndef TESSERA_TOOLS_TRAIN_REPORT_TIER_LOG_H_
#define TESSERA_TOOLS_TRAIN_REPORT_TIER_LOG_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/os/unique_fd.h"
#include "offload/tier/memory_tier.h"
#include "tools/train/report/spans.h"

namespace tessera::train {

// The time from one stamp to the next.
struct TierSegment {
  Span span = {};
  // The part in which the thread slept.
  int64_t blocked_ns = 0;
};

struct TierTime {
  std::vector<Span> calls = {};  // Of the rank's thread to tiers.
  // Operations from their begin to their end, or until now.
  std::vector<Span> in_flight = {};
  std::vector<TierSegment> segments = {};
};

class TierLog {
 public:
  // Must be created by the rank's thread.
  TierLog();

  // Records a call by this thread from `begin_ns` until now. Ignored on other
  // threads.
  void Called(int64_t begin_ns);
  // Records the begin of an operation, and its end by the number that Began
  // returned. From any thread. The end may be recorded after the waiter has
  // continued.
  uint64_t Began(int64_t begin_ns);
  void Ended(uint64_t operation);

  // Only on the rank's thread.
  void Stamp();
  TierTime Take();

 private:
  struct Moment {
    int64_t ns = 0;
    int64_t on_processor_ns = 0;
    int64_t kept_off_ns = 0;  // Ready, without a processor.
  };
  Moment Now() const;

  const std::thread::id thread_;
  const UniqueFd schedstat_;
  Moment last_;
  std::vector<Span> calls_;
  std::vector<TierSegment> segments_;
  std::mutex mutex_;
  // Under mutex_.
  std::vector<Span> in_flight_;
  std::map<uint64_t, int64_t> under_way_;  // The begins.
  uint64_t next_ = 0;
};

// Forwards to another tier and logs its calls and operations.
class TimedTier final : public offload::MemoryTier {
 public:
  TimedTier(std::shared_ptr<offload::MemoryTier> inner,
            std::shared_ptr<TierLog> log)
      : inner_(std::move(inner)), log_(std::move(log)) {}

  std::string_view name() const override { return inner_->name(); }
  offload::Operation StartPut(std::string_view key,
                              std::span<const std::byte> bytes,
                              offload::BlockInfo info) override;
  offload::Operation StartPrefetch(std::string_view key) override;
  absl::Status Drop(std::string_view key) override;
  absl::StatusOr<offload::BlockStat> Stat(std::string_view key) const override {
    return inner_->Stat(key);
  }
  std::vector<std::string> Keys() const override { return inner_->Keys(); }
  std::vector<offload::TierUsage> usage() const override {
    return inner_->usage();
  }
  absl::StatusOr<offload::BlockView> Map(std::string_view key) override;
  absl::StatusOr<offload::BlockView> MapNew(std::string_view key, int64_t bytes,
                                            offload::BlockInfo info) override;
  bool IsLossless(offload::Purpose purpose, DType dtype) const override {
    return inner_->IsLossless(purpose, dtype);
  }

 protected:
  offload::Operation StartRead(std::string_view key,
                               std::optional<int64_t> offset,
                               std::span<std::byte> out) override;

 private:
  // Logs the call, and the operation when it ends.
  offload::Operation Logged(int64_t begin_ns, offload::Operation operation);

  const std::shared_ptr<offload::MemoryTier> inner_;
  const std::shared_ptr<TierLog> log_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_TIER_LOG_H_
