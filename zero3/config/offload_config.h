// OffloadConfig: which model state ZeRO-3 offloads, and into how much memory.
#ifndef TESSERA_ZERO3_CONFIG_OFFLOAD_CONFIG_H_
#define TESSERA_ZERO3_CONFIG_OFFLOAD_CONFIG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "offload/pressure/pressure_policy.h"
#include "offload/tier/accounting.h"
#include "offload/tier/compressed_tier.h"
#include "offload/tier/memory_tier.h"
#include "offload/tier/pinned_arena.h"
#include "offload/tier/spill_tier.h"
#include "zero3/state/state_options.h"

namespace tessera::zero3 {

// Example:
//
//   OffloadConfig config = {.optimizer = true,
//                           .host_budget = int64_t{8} << 30,
//                           .directory = "/scratch"};
//   TESSERA_ASSIGN_OR_RETURN(const OffloadTier offload,
//                            MakeOffloadTier(config, DType::kBF16));
//   ShardedStateOptions options = {.stage = 3};
//   AddTo(options, config, offload.tier.get());
//
// A plain value, which Validate checks. Sizes are bytes of one rank.
struct OffloadConfig {
  // What is offloaded: parameters at stage 3, gradients at stages 2 and 3.
  bool parameters = false;
  bool gradients = false;
  bool optimizer = false;

  // The host memory of offloaded blocks, which counts encoded bytes. Blocks for
  // which it has no room go to a file in `directory`; if that is empty, they
  // are a ResourceExhausted error. Without a host budget, a directory takes all
  // blocks.
  int64_t host_budget = offload::kUnlimited;
  // The rank's own memory for model state and its buffers.
  int64_t device_budget = offload::kUnlimited;
  // The memory that exists: the budgets' maxima.
  int64_t host_memory = offload::kUnlimited;
  int64_t device_memory = offload::kUnlimited;
  std::string directory = "";

  // The number of parameters whose shards are read ahead of their gathers, and
  // whether they are read ahead at all.
  int64_t prefetch = 16;
  bool async_prefetch = true;
  // ShardedStateOptions::overlap.
  bool overlap = true;
  // Page-locks the whole host budget when the tier is made.
  bool pin_memory = false;
  // A name of offload::CreateCodec; see CodecOf.
  std::string codec = "none";
  // When and how much SpillTier::Relieve moves to the directory.
  offload::PressureStrategy strategy = offload::PressureStrategy::kConservative;

  // Offloads all state, with the defaults of torsh's Zero3CpuOffloadConfig: of
  // 64 GiB of host memory 32 GiB, pinned, of 8 GiB of device memory 2 GiB, and
  // the aggressive strategy.
  static OffloadConfig Everything();

  // InvalidArgument, with all problems, if a size or `prefetch` is below 1, a
  // budget exceeds its memory, pinned memory has no host budget, or the codec
  // is unknown.
  absl::Status Validate() const;

  // The codec of the blocks of a purpose for parameters of a type. A codec that
  // rounds is used only for gradients and for 16-bit parameters, which have
  // master weights; other state is "lossless" instead.
  std::string CodecOf(offload::Purpose purpose, DType parameters) const;

  // The bytes of `dtype` whose encoding fills the host budget, without the
  // blocks' headers, rounded down: 2000 for a budget of 1000, f32 and fp16. The
  // sizes of lossy codecs are exact. Lossless ones depend on the values:
  // without a measurement (CompressedTier::compression) the result is what is
  // certain to fit. kUnlimited without a host budget or if the result exceeds
  // it. Returns the errors of CreateCodec and Codec::MaxEncodedBytes.
  absl::StatusOr<int64_t> EffectiveHostBudget(
      DType dtype, const offload::Compression& measured = {}) const;

  // One flat JSON object with the fields' names as keys; unlimited sizes are
  // null. Parse keeps the defaults of missing keys, rejects unknown ones, and
  // returns the errors of Validate.
  std::string ToJson() const;
  static absl::StatusOr<OffloadConfig> Parse(std::string_view json);

  friend bool operator==(const OffloadConfig&, const OffloadConfig&) = default;
};

// The tier of a configuration.
struct OffloadTier {
  std::shared_ptr<offload::MemoryTier> tier;
  // The part of `tier` over the host and the directory; null if there is only
  // one of them.
  std::shared_ptr<offload::SpillTier> spill = nullptr;
  // The pinned memory; null without pin_memory. PinnedArena::pin_status says if
  // the system refused to pin it.
  std::shared_ptr<offload::PinnedArena> arena = nullptr;
};

struct OffloadTierOptions {
  offload::Pinning pinning = offload::MlockPinning();
  // Counts the buffers of the file; null: they are not counted.
  std::shared_ptr<offload::Accounting> file_buffers = nullptr;
};

// Makes the tier for a rank's blocks: "host" in memory and "file" in the
// directory, compressed unless the codec is "none". `parameters` is the type of
// the model's parameters. Returns the errors of Validate, of the file and of
// the arena.
absl::StatusOr<OffloadTier> MakeOffloadTier(const OffloadConfig& config,
                                            DType parameters,
                                            OffloadTierOptions options = {});

// Points `options`, whose stage is set, at the tier, which must outlive the
// state, and sets its device budget, prefetch and overlap.
void AddTo(ShardedStateOptions& options, const OffloadConfig& config,
           offload::MemoryTier* tier);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CONFIG_OFFLOAD_CONFIG_H_
