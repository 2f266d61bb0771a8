// CompressedTier: stores encoded blocks in another tier.
#ifndef TESSERA_OFFLOAD_TIER_COMPRESSED_TIER_H_
#define TESSERA_OFFLOAD_TIER_COMPRESSED_TIER_H_

#include <array>
#include <memory>
#include <string>

#include "offload/codec/codec.h"
#include "offload/tier/memory_tier.h"
#include "offload/tier/operation.h"

namespace tessera::offload {

// Sizes of blocks before and after encoding.
struct Compression {
  int64_t original_bytes = 0;
  int64_t held_bytes = 0;
  // 1 if no bytes are held.
  double ratio() const {
    return held_bytes == 0 ? 1.0
                           : static_cast<double>(original_bytes) /
                                 static_cast<double>(held_bytes);
  }
};

// Example:
//
//   TESSERA_ASSIGN_OR_RETURN(auto codec, CreateCodec("lossless"));
//   CompressedTier tier(std::move(codec), disk);   // over a FileTier
//   TESSERA_RETURN_IF_ERROR(tier.Put("w", bytes, {.dtype = DType::kBF16}));
//   double ratio = tier.compression().ratio();     // measured
//
// The tier below has the budget and the accounting, which count encoded bytes.
// Blocks are encoded and decoded on the tier's own threads, with scratch memory
// that `scratch` counts: at most Codec::MaxEncodedBytes of a block per thread;
// GetRange also needs the whole block. A block must be a whole number of
// elements of its dtype (InvalidArgument). Lossy codecs change values:
// IsLossless returns for which purposes and types. Options can set a codec for
// each purpose.
class CompressedTier final : public MemoryTier {
 public:
  struct Options {
    int threads = 1;
    // Null: counted without a limit.
    std::shared_ptr<Accounting> scratch = nullptr;
    // The codec of the blocks of each purpose; null selects the tier's codec.
    std::array<std::shared_ptr<const Codec>, kAllPurposes.size()> codec_of = {};
  };

  // `base` is empty or holds blocks of a CompressedTier with the same codecs.
  CompressedTier(std::shared_ptr<const Codec> codec,
                 std::shared_ptr<MemoryTier> base)
      : CompressedTier(std::move(codec), std::move(base), Options()) {}
  CompressedTier(std::shared_ptr<const Codec> codec,
                 std::shared_ptr<MemoryTier> base, Options options);

  std::string_view name() const override { return name_; }
  Operation StartPut(std::string_view key, std::span<const std::byte> bytes,
                     BlockInfo info) override;
  Operation StartPrefetch(std::string_view key) override;
  absl::Status Drop(std::string_view key) override;
  absl::StatusOr<BlockStat> Stat(std::string_view key) const override;
  std::vector<std::string> Keys() const override;
  // The budgets of the tier below, then the budget of the scratch memory.
  std::vector<TierUsage> usage() const override;
  bool IsLossless(Purpose purpose, DType dtype) const override;

  // Totals of all current blocks.
  Compression compression() const;

 protected:
  Operation StartRead(std::string_view key, std::optional<int64_t> offset,
                      std::span<std::byte> out) override;

 private:
  const Codec& CodecOf(Purpose purpose) const;
  absl::Status Encode(std::string_view key, std::span<const std::byte> bytes,
                      BlockInfo info);
  absl::Status Decode(std::string_view key, std::optional<int64_t> offset,
                      std::span<std::byte> out);
  absl::Status DecodeFrom(std::string_view key, const BlockStat& held,
                          std::optional<int64_t> offset,
                          std::span<std::byte> out);

  const std::shared_ptr<const Codec> codec_;
  const decltype(Options::codec_of) codec_of_;
  const std::shared_ptr<MemoryTier> base_;
  const std::shared_ptr<Accounting> scratch_;
  const std::string name_;
  WorkerPool workers_;  // destroyed first
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_COMPRESSED_TIER_H_
