// FarTier: a tier in memory that does not show its blocks, as a file does not,
// and refuses puts when told.
#ifndef TESSERA_ZERO3_STATE_FAR_TIER_H_
#define TESSERA_ZERO3_STATE_FAR_TIER_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "offload/tier/host_tier.h"

namespace tessera::zero3::testing {

class FarTier final : public offload::MemoryTier {
 public:
  FarTier()
      : FarTier(std::make_shared<offload::Accounting>("far",
                                                      offload::kUnlimited)) {}
  explicit FarTier(std::shared_ptr<offload::Accounting> accounting)
      : host_(std::move(accounting)) {}

  std::string_view name() const override { return "far"; }
  offload::Operation StartPut(std::string_view key,
                              std::span<const std::byte> bytes,
                              offload::BlockInfo info) override {
    ++puts;
    if (is_full) {
      return offload::Operation(
          absl::ResourceExhaustedError(absl::StrCat("far: no room for ", key)));
    }
    return host_.StartPut(key, bytes, info);
  }
  absl::Status Drop(std::string_view key) override { return host_.Drop(key); }
  absl::StatusOr<offload::BlockStat> Stat(std::string_view key) const override {
    return host_.Stat(key);
  }
  std::vector<std::string> Keys() const override { return host_.Keys(); }
  std::vector<offload::TierUsage> usage() const override {
    return host_.usage();
  }

  std::atomic<bool> is_full = false;
  std::atomic<int> puts = 0;
  std::atomic<int> gets = 0;

 protected:
  offload::Operation StartRead(std::string_view key,
                               std::optional<int64_t> offset,
                               std::span<std::byte> out) override {
    ++gets;
    return offset ? host_.StartGetRange(key, *offset, out)
                  : host_.StartGet(key, out);
  }

 private:
  offload::HostTier host_;
};

}  // namespace tessera::zero3::testing

#endif  // TESSERA_ZERO3_STATE_FAR_TIER_H_
