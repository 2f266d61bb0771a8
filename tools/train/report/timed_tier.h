// TimedTier: a tier like another one, whose operations are logged.
//
//   TimedTier tier(file_tier, log);
#ifndef TESSERA_TOOLS_TRAIN_REPORT_TIMED_TIER_H_
#define TESSERA_TOOLS_TRAIN_REPORT_TIMED_TIER_H_

#include <memory>
#include <utility>

#include "offload/tier/memory_tier.h"
#include "tools/train/report/tier_log.h"

namespace tessera::train {

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
  absl::Status Flush() override;

 protected:
  offload::Operation StartRead(std::string_view key,
                               std::optional<int64_t> offset,
                               std::span<std::byte> out) override;

 private:
  // Logs the call, and the operation once it is over.
  offload::Operation Logged(int64_t begin_ns, offload::Operation operation);

  const std::shared_ptr<offload::MemoryTier> inner_;
  const std::shared_ptr<TierLog> log_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_TIMED_TIER_H_
