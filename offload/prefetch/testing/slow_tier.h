// SlowTier: a tier in memory that behaves like a device: every transfer has a
// latency, all transfers in a direction share one bandwidth, and tests can
// inject faults.
//
//   SlowTier tier({.latency_ns = 100'000, .bytes_per_second = 1 << 30});
//   tier.FailGet("layer.1", absl::DataLossError("torn"));
//   tier.starts();   // "get layer.0", "put layer.3", ...
//
// Safe for concurrent use.
#ifndef TESSERA_OFFLOAD_PREFETCH_TESTING_SLOW_TIER_H_
#define TESSERA_OFFLOAD_PREFETCH_TESTING_SLOW_TIER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "offload/tier/memory_tier.h"

namespace tessera::offload {

class SlowTier final : public MemoryTier {
 public:
  struct Options {
    int64_t latency_ns = 0;
    int64_t bytes_per_second = 0;  // 0: as fast as memory
    int lanes = 8;                 // transfers at once
  };

  explicit SlowTier(Options options);
  ~SlowTier() override;

  // The next transfer of `key` fails with `status`.
  void FailGet(std::string_view key, absl::Status status);
  void FailPut(std::string_view key, absl::Status status);
  void ForgetFaults();
  // While held, transfers start but do not end.
  void Hold(bool held);

  // Transfers in the order in which they were started.
  std::vector<std::string> starts() const;
  void ForgetStarts();
  int most_in_flight() const;

  std::string_view name() const override { return "slow"; }
  Operation StartPut(std::string_view key, std::span<const std::byte> bytes,
                     BlockInfo info) override;
  absl::Status Drop(std::string_view key) override;
  absl::StatusOr<BlockStat> Stat(std::string_view key) const override;
  std::vector<std::string> Keys() const override;
  std::vector<TierUsage> usage() const override { return {}; }

 protected:
  Operation StartRead(std::string_view key, std::optional<int64_t> offset,
                      std::span<std::byte> out) override;

 private:
  struct Entry {
    std::vector<std::byte> bytes;
    BlockInfo info;
  };
  using Faults = std::map<std::string, absl::Status, std::less<>>;

  Operation Start(std::string what, int64_t bytes, int64_t& channel_ns,
                  std::function<absl::Status()> act);
  void Work();
  static absl::Status TakeFault(Faults& faults, std::string_view key);

  const Options options_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Entry, std::less<>> entries_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> starts_ ABSL_GUARDED_BY(mutex_);
  Faults get_faults_ ABSL_GUARDED_BY(mutex_);
  Faults put_faults_ ABSL_GUARDED_BY(mutex_);
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  int most_in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t get_channel_ns_ ABSL_GUARDED_BY(mutex_) = 0;  // busy until
  int64_t put_channel_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> threads_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PREFETCH_TESTING_SLOW_TIER_H_
