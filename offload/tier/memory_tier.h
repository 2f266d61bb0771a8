// MemoryTier: the interface of all tiers, which store named blocks of bytes.
#ifndef TESSERA_OFFLOAD_TIER_MEMORY_TIER_H_
#define TESSERA_OFFLOAD_TIER_MEMORY_TIER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "offload/tier/accounting.h"
#include "offload/tier/operation.h"

namespace tessera::offload {

// Describes a block. Codecs interpret the bytes by `dtype`; other tiers only
// store it.
struct BlockInfo {
  Purpose purpose = Purpose::kBuffers;
  DType dtype = DType::kU8;
  // Bytes before encoding, or -1 if the block is not an encoding. Set by
  // codecs.
  int64_t original_bytes = -1;
  friend bool operator==(const BlockInfo&, const BlockInfo&) = default;
};

struct BlockStat {
  int64_t bytes = 0;       // of Put and Get
  int64_t held_bytes = 0;  // counted by the budget
  BlockInfo info;
};

// A block's bytes in place, for reading and writing.
struct BlockView {
  std::span<std::byte> bytes;
  std::shared_ptr<const void> hold;  // keeps `bytes` valid
};

// The usage of one budget in a stack of tiers.
struct TierUsage {
  std::string tier;
  Usage usage;
};

// A key consists of 1 to kMaxKeyBytes bytes of any value.
inline constexpr size_t kMaxKeyBytes = 256;

// Example:
//
//   TESSERA_RETURN_IF_ERROR(tier.Put("layer.0.weight", bytes,
//                                    {Purpose::kParameters, DType::kBF16}));
//   Operation load = tier.StartGet("layer.0.weight", buffer);
//   Compute();
//   TESSERA_RETURN_IF_ERROR(load.Wait());
//   TESSERA_RETURN_IF_ERROR(tier.Drop("layer.0.weight"));
//
// Implementations: host_tier.h (heap or pinned arena), file_tier.h, and
// compressed_tier.h over any other. README.md compares them.
//
// The contract of every tier:
// - Puts and reads of a block are atomic. Concurrent operations on one key take
//   effect in some order; no read returns a mixture of versions. A read that
//   starts after a Put has ended returns that version or a later one.
// - A failed or rejected operation leaves every block unchanged.
// - The budget counts bytes in use and is checked in advance: a Put that would
//   exceed it returns ResourceExhausted before anything is evicted, allocated
//   or written.
// - Safe for concurrent use by any number of threads, except destruction: end
//   every Operation and release every BlockView first.
class MemoryTier {
 public:
  virtual ~MemoryTier() = default;

  // For messages: "host", "pinned", "file", "lossless over file".
  virtual std::string_view name() const = 0;

  // Stores a copy of `bytes` under `key`, replacing any block there. `bytes`
  // must stay valid and unchanged until the Operation is done. InvalidArgument
  // for an invalid key or info; ResourceExhausted if the budget is exceeded or
  // the device is full.
  virtual Operation StartPut(std::string_view key,
                             std::span<const std::byte> bytes,
                             BlockInfo info) = 0;

  // Reads the whole block; `out` must have exactly its size (InvalidArgument).
  // `out` must stay valid and untouched until the Operation is done; after an
  // error its bytes are undefined. NotFound if the block does not exist;
  // DataLoss if it is damaged.
  Operation StartGet(std::string_view key, std::span<std::byte> out) {
    return StartRead(key, std::nullopt, out);
  }

  // Reads out.size() bytes from `offset`; OutOfRange past the end.
  Operation StartGetRange(std::string_view key, int64_t offset,
                          std::span<std::byte> out) {
    return StartRead(key, offset, out);
  }

  // A hint that `key` is needed soon. OK if there is nothing to do; NotFound if
  // the block does not exist.
  virtual Operation StartPrefetch(std::string_view key);

  // Removes the block; NotFound if it does not exist. Reads in flight and views
  // stay valid; the memory that they use counts until they are done.
  virtual absl::Status Drop(std::string_view key) = 0;

  // NotFound if the block does not exist.
  virtual absl::StatusOr<BlockStat> Stat(std::string_view key) const = 0;

  // All keys, ascending.
  virtual std::vector<std::string> Keys() const = 0;

  // The budgets of this tier and those below it, nearest first.
  virtual std::vector<TierUsage> usage() const = 0;

  // Returns the block's own bytes without a copy, valid while `hold` lives. The
  // caller synchronises writes with readers. A Put of another size or a Drop
  // detaches the view. Unimplemented if the CPU cannot access the bytes.
  virtual absl::StatusOr<BlockView> Map(std::string_view key);

  // Creates or replaces a block with `bytes` bytes of undefined contents, to be
  // filled in place; it is visible to readers at once. Errors as for Put;
  // Unimplemented if Map is.
  virtual absl::StatusOr<BlockView> MapNew(std::string_view key, int64_t bytes,
                                           BlockInfo info);

  // Returns true if every block of this purpose and type is restored bit for
  // bit. A tier over others answers for the whole stack.
  virtual bool IsLossless(Purpose purpose, DType dtype) const;

  // Blocking versions.
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
  // Reads the whole block if `offset` is nullopt.
  virtual Operation StartRead(std::string_view key,
                              std::optional<int64_t> offset,
                              std::span<std::byte> out) = 0;
};

// InvalidArgument if `key` is empty or too long, or `info` has an invalid
// value. This and the following functions are shared by all implementations.
absl::Status CheckBlock(std::string_view tier, std::string_view key,
                        BlockInfo info);
// NotFound; the message names `tier` and `key`.
absl::Status NoSuchBlock(std::string_view tier, std::string_view key);
// Checks that `size` bytes at `offset` (the whole block if nullopt) lie in a
// block of `bytes`.
absl::Status CheckRange(std::string_view tier, std::string_view key,
                        int64_t bytes, std::optional<int64_t> offset,
                        size_t size);
// `key` for messages: unprintable bytes escaped, long keys truncated.
std::string QuoteKey(std::string_view key);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_MEMORY_TIER_H_
