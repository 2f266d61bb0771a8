// MemoryTier: a place that holds named blocks of bytes.
//
//   TESSERA_RETURN_IF_ERROR(tier.Put("layer.0.weight", bytes,
//                                    {Purpose::kParameters, DType::kBF16}));
//   Operation load = tier.StartGet("layer.0.weight", buffer);
//   Compute();
//   TESSERA_RETURN_IF_ERROR(load.Wait());
//   TESSERA_RETURN_IF_ERROR(tier.Drop("layer.0.weight"));
//
// Tiers stack: host_tier.h (heap or pinned arena), file_tier.h, and over
// others stack/compressed_tier.h and stack/layered_tier.h. README.md compares
// them.
//
// The contract of every tier:
// - A block is replaced and read as a whole. Operations on one key that are in
//   flight at once take effect in some order; no read sees a mixture. A read
//   that starts after a Put has ended sees that Put, or a later one.
// - A failed or refused operation leaves every block as it was.
// - The budget counts bytes really held. It is asked before they are: a Put
//   that would exceed it is ResourceExhausted, and nothing is evicted,
//   allocated or written for it first (but see stack/layered_tier.h).
// - Safe for concurrent use by any number of threads. Destruction is not: end
//   every Operation and drop every BlockView first.
#ifndef TESSERA_OFFLOAD_TIER_MEMORY_TIER_H_
#define TESSERA_OFFLOAD_TIER_MEMORY_TIER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "offload/tier/accounting.h"
#include "offload/tier/operation.h"
#include "offload/tier/purpose.h"

namespace tessera::offload {

// What a block is. `dtype` tells codecs what the bytes mean; other tiers only
// keep it.
struct BlockInfo {
  Purpose purpose = Purpose::kBuffers;
  DType dtype = DType::kU8;
  // Where the bytes are an encoding: how many they were before. Codecs set it.
  int64_t original_bytes = -1;
  friend bool operator==(const BlockInfo&, const BlockInfo&) = default;
};

struct BlockStat {
  int64_t bytes = 0;       // as put, and as Get gives back
  int64_t held_bytes = 0;  // what counts against the budget
  BlockInfo info;
};

// A block's bytes in place, for reading and writing.
struct BlockView {
  std::span<std::byte> bytes;
  std::shared_ptr<const void> hold;  // `bytes` stay while it lives
};

// One budget of a stack.
struct TierUsage {
  std::string tier;
  Usage usage;
};

// Any bytes, 1 to this many of them.
inline constexpr size_t kMaxKeyBytes = 256;

class MemoryTier {
 public:
  virtual ~MemoryTier() = default;

  // "host", "pinned", "file", "lossless over file": for messages.
  virtual std::string_view name() const = 0;

  // Holds a copy of `bytes` under `key`, in place of what was there. `bytes`
  // must stay and not change until the Operation is over. InvalidArgument for
  // a bad key or info; ResourceExhausted for the budget or a full device.
  virtual Operation StartPut(std::string_view key,
                             std::span<const std::byte> bytes,
                             BlockInfo info) = 0;

  // Reads the whole block: `out` is exactly as long (InvalidArgument). `out`
  // must stay, untouched, until the Operation is over; after an error its
  // bytes are undefined. NotFound without such a block; DataLoss where it is
  // there but damaged.
  Operation StartGet(std::string_view key, std::span<std::byte> out) {
    return StartRead(key, std::nullopt, out);
  }

  // Reads out.size() bytes from `offset` on; OutOfRange past the end.
  Operation StartGetRange(std::string_view key, int64_t offset,
                          std::span<std::byte> out) {
    return StartRead(key, offset, out);
  }

  // A hint that `key` is wanted soon: a stack moves it nearer where there is
  // room or something may be evicted. Over with OK where there is nothing to
  // do; NotFound without such a block.
  virtual Operation StartPrefetch(std::string_view key);

  // Forgets the block. NotFound without one. Reads in flight and views stay
  // valid; memory that they keep counts until they are done.
  virtual absl::Status Drop(std::string_view key) = 0;

  // NotFound without such a block.
  virtual absl::StatusOr<BlockStat> Stat(std::string_view key) const = 0;

  // Every key, ascending.
  virtual std::vector<std::string> Keys() const = 0;

  // The budgets of this tier and those below it, nearest first.
  virtual std::vector<TierUsage> usage() const = 0;

  // The block's own bytes, without a copy, while `hold` lives; whoever writes
  // there keeps others from reading. A Put of another size or a Drop detaches
  // the view. Unimplemented where the CPU cannot reach the bytes.
  virtual absl::StatusOr<BlockView> Map(std::string_view key);

  // A block of `bytes` bytes with undefined contents, in place of what was
  // there, to be filled in place; others see it at once. Refused as by Put;
  // Unimplemented where Map is.
  virtual absl::StatusOr<BlockView> MapNew(std::string_view key, int64_t bytes,
                                           BlockInfo info);

  // Whether every block of this purpose and type comes back bit for bit. A tier
  // over others answers for the whole stack.
  virtual bool IsLossless(Purpose purpose, DType dtype) const;

  // What was put is as safe as the tier can make it: a layered tier writes its
  // front down, a kept file is synced.
  virtual absl::Status Flush() { return absl::OkStatus(); }

  // Start and wait.
  absl::Status Put(std::string_view key, std::span<const std::byte> bytes,
                   BlockInfo info) {
    return StartPut(key, bytes, info).Wait();
  }
  absl::Status Get(std::string_view key, std::span<std::byte> out) {
    return StartGet(key, out).Wait();
  }
  absl::Status GetRange(std::string_view key, int64_t offset,
                        std::span<std::byte> out) {
    return StartGetRange(key, offset, out).Wait();
  }
  absl::Status Prefetch(std::string_view key) {
    return StartPrefetch(key).Wait();
  }
  bool Contains(std::string_view key) const { return Stat(key).ok(); }

 protected:
  // Without an offset: the whole block.
  virtual Operation StartRead(std::string_view key,
                              std::optional<int64_t> offset,
                              std::span<std::byte> out) = 0;
};

// For implementations: the refusals that all tiers share.

// InvalidArgument where `key` is empty or too long, or `info` holds a number
// that names nothing.
absl::Status CheckBlock(std::string_view tier, std::string_view key,
                        BlockInfo info);
// The message names `tier` and `key`.
absl::Status NoSuchBlock(std::string_view tier, std::string_view key);
// Whether `size` bytes at `offset` (the whole where there is none) lie in a
// block of `bytes`.
absl::Status CheckRange(std::string_view tier, std::string_view key,
                        int64_t bytes, std::optional<int64_t> offset,
                        size_t size);
// `key` as messages show it: unprintable bytes escaped, long ones cut.
std::string QuoteKey(std::string_view key);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_MEMORY_TIER_H_
