// BoundTier: holds every read of a lossy codec's tier to the codec's own bound,
// and counts what it held to it.
#ifndef TESSERA_ZERO3_STATE_BOUND_TIER_H_
#define TESSERA_ZERO3_STATE_BOUND_TIER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "offload/codec/codec.h"
#include "offload/tier/compressed_tier.h"
#include "offload/tier/memory_tier.h"

namespace tessera::zero3::testing {

class BoundTier final : public offload::MemoryTier {
 public:
  // In host memory.
  explicit BoundTier(std::shared_ptr<const offload::Codec> codec);

  std::string_view name() const override { return tier_.name(); }
  offload::Operation StartPut(std::string_view key,
                              std::span<const std::byte> bytes,
                              offload::BlockInfo info) override;
  absl::Status Drop(std::string_view key) override { return tier_.Drop(key); }
  absl::StatusOr<offload::BlockStat> Stat(std::string_view key) const override {
    return tier_.Stat(key);
  }
  std::vector<std::string> Keys() const override { return tier_.Keys(); }
  std::vector<offload::TierUsage> usage() const override {
    return tier_.usage();
  }

  bool IsLossless(offload::Purpose purpose, DType dtype) const override {
    return tier_.IsLossless(purpose, dtype);
  }

  // Elements that were read so far, and how many of these had changed.
  int64_t elements() const;
  int64_t changed() const;

 protected:
  // OutOfRange, so that training stops, where an element is out of its bound.
  offload::Operation StartRead(std::string_view key,
                               std::optional<int64_t> offset,
                               std::span<std::byte> out) override;

 private:
  struct Original {
    std::vector<std::byte> bytes;
    DType dtype = DType::kU8;
  };

  absl::Status Check(std::string_view key, std::span<const std::byte> decoded);

  const std::shared_ptr<const offload::Codec> codec_;
  offload::CompressedTier tier_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Original, std::less<>> originals_
      ABSL_GUARDED_BY(mutex_);
  int64_t elements_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t changed_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tessera::zero3::testing

#endif  // TESSERA_ZERO3_STATE_BOUND_TIER_H_
