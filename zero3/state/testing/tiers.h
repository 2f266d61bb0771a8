// Memory tiers for tests of ShardedState.
#ifndef TESSERA_ZERO3_STATE_TESTING_TIERS_H_
#define TESSERA_ZERO3_STATE_TESTING_TIERS_H_

#include <atomic>
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
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "offload/codec/codec.h"
#include "offload/tier/compressed_tier.h"
#include "offload/tier/host_tier.h"
#include "offload/tier/memory_tier.h"

namespace tessera::zero3::testing {

// A tier in host memory without in-place access, like files. Can fail puts.
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

// A compressed tier with a lossy codec that verifies on every read that the
// elements are within the codec's error bound, and counts changed elements.
class BoundTier final : public offload::MemoryTier {
 public:
  // Blocks are in host memory.
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

  // The number of elements read so far, and of those that differed.
  int64_t elements() const;
  int64_t changed() const;

 protected:
  // OutOfRange, which stops training, if an element exceeds its bound.
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

#endif  // TESSERA_ZERO3_STATE_TESTING_TIERS_H_
