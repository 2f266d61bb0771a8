#include "tools/offload_bench/tiers.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "offload/codec/codec.h"
#include "offload/tier/compressed_tier.h"
#include "offload/tier/host_tier.h"
#include "offload/tier/pinned_arena.h"
#include "tools/offload_bench/blocks.h"
#include "tools/offload_bench/weights.h"

namespace tessera::offload_bench {
namespace {

using offload::Accounting;
using offload::CompressedTier;
using offload::HostTier;
using offload::kUnlimited;
using offload::MemoryTier;
using offload::PinnedArena;

constexpr uint64_t kSeed = 3;

struct TierCase {
  std::shared_ptr<MemoryTier> tier;
  DType dtype = DType::kBF16;
  bool lossless = true;
  const CompressedTier* compressed = nullptr;
  std::string note = {};
};

absl::Status MeasureWay(const TierCase& c, bool put, Blocks& blocks,
                        const TiersOptions& options, const Sink& sink) {
  Measurement m;
  m.what = "tiers";
  m.name = std::string(c.tier->name());
  m.operation = put ? "put" : "get";
  m.data = std::string(DTypeName(c.dtype));
  m.block_bytes = blocks.block_bytes();
  m.bytes = blocks.bytes();
  m.limit = "memcpy";
  m.note = c.note;
  m.time = options.time;
  Pass limit = Timed([&blocks] { return blocks.CopyAll(); }, options.time);
  if (c.compressed != nullptr) {
    m.ratio = c.compressed->compression().ratio();
    TESSERA_ASSIGN_OR_RETURN(
        limit, MemcpyPass(m.bytes + c.compressed->compression().held_bytes,
                          options.time));
  }
  const auto work = [&] {
    return put ? blocks.PutAll(*c.tier) : blocks.GetAll(*c.tier);
  };
  TESSERA_ASSIGN_OR_RETURN(m.times, CompareInTurns(Timed(work, options.time),
                                                   limit, options.seconds));
  sink(m);
  return absl::OkStatus();
}

absl::Status MeasureTier(const TierCase& c, Blocks& blocks,
                         const TiersOptions& options, const Sink& sink) {
  TESSERA_RETURN_IF_ERROR(blocks.PutAll(*c.tier));
  TESSERA_RETURN_IF_ERROR(blocks.GetAll(*c.tier));
  if (c.lossless) TESSERA_RETURN_IF_ERROR(blocks.CheckRoom(*c.tier));
  TESSERA_RETURN_IF_ERROR(MeasureWay(c, true, blocks, options, sink));
  return MeasureWay(c, false, blocks, options, sink);
}

TierCase Host() {
  return {.tier = std::make_shared<HostTier>(
              std::make_shared<Accounting>("host", kUnlimited))};
}

absl::StatusOr<TierCase> Pinned(int64_t bytes) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<PinnedArena> arena,
                           PinnedArena::Create({.cap = bytes}));
  return TierCase{
      .tier = std::make_shared<HostTier>(
          std::make_shared<Accounting>("pinned", kUnlimited), arena),
      .note = arena->pinned() ? ""
                              : absl::StrCat("not pinned: ",
                                             arena->pin_status().message())};
}

absl::StatusOr<TierCase> Compressed(std::string_view codec_name, DType dtype) {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const offload::Codec> codec,
                           offload::CreateCodec(codec_name));
  TierCase c;
  c.dtype = dtype;
  c.lossless = codec->IsLossless(dtype);
  auto tier = std::make_shared<CompressedTier>(std::move(codec), Host().tier);
  c.compressed = tier.get();
  c.tier = std::move(tier);
  return c;
}

}  // namespace

absl::Status MeasureTiers(const TiersOptions& options, const Sink& sink) {
  for (const int64_t block_bytes : options.blocks) {
    std::vector<TierCase> cases = {Host()};
    TESSERA_ASSIGN_OR_RETURN(cases.emplace_back(), Pinned(options.size));
    TESSERA_ASSIGN_OR_RETURN(cases.emplace_back(),
                             Compressed("lossless_fast", DType::kBF16));
    TESSERA_ASSIGN_OR_RETURN(cases.emplace_back(),
                             Compressed("int8", DType::kF32));
    for (const TierCase& c : cases) {
      TESSERA_ASSIGN_OR_RETURN(
          Buffer values,
          NormalWeights(c.dtype, options.size / SizeInBytes(c.dtype), kSeed));
      TESSERA_ASSIGN_OR_RETURN(
          Blocks blocks, Blocks::Cut(std::move(values), c.dtype, block_bytes));
      TESSERA_RETURN_IF_ERROR(MeasureTier(c, blocks, options, sink));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::offload_bench
