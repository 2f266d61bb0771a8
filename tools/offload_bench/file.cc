#include "tools/offload_bench/file.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "offload/tier/file_tier.h"
#include "tools/offload_bench/blocks.h"
#include "tools/offload_bench/raw_file.h"
#include "tools/offload_bench/weights.h"

namespace tessera::offload_bench {
namespace {

using offload::Accounting;
using offload::FileTier;
using offload::FileTierOptions;
using offload::kUnlimited;

constexpr uint64_t kSeed = 5;
constexpr int64_t kGrowth = int64_t{16} << 20;

absl::StatusOr<std::unique_ptr<FileTier>> OpenTier(
    const FileBenchOptions& options) {
  FileTierOptions tier;
  tier.path = options.directory;
  tier.queue_depth = static_cast<int>(options.depth);
  tier.space.growth_bytes = kGrowth;
  return FileTier::Create(std::make_shared<Accounting>("file", kUnlimited),
                          std::move(tier));
}

std::string NoteOf(const FileTier& tier, const RawFile& raw) {
  if (tier.direct() != raw.direct()) {
    return "NOT COMPARABLE: one of the two goes through the page cache";
  }
  if (tier.direct()) return "O_DIRECT";
  return absl::StrCat("PAGE CACHE, not the device: ", tier.why_not_direct());
}

absl::Status MeasureWay(bool put, FileTier& tier, Blocks& blocks, RawFile& raw,
                        double seconds, const Sink& sink) {
  Measurement m;
  m.what = "file";
  m.name = absl::StrCat(tier.name(), " by ", tier.engine_name());
  m.operation = put ? "put" : "get";
  m.data = "random bytes";
  m.block_bytes = blocks.block_bytes();
  m.bytes = blocks.bytes();
  m.limit = "device";
  m.note = NoteOf(tier, raw);
  TESSERA_ASSIGN_OR_RETURN(
      m.times,
      CompareInTurns(Timed([&] {
                       return put ? blocks.PutAll(tier) : blocks.GetAll(tier);
                     }),
                     Timed([&] { return put ? raw.Write() : raw.Read(); }),
                     seconds));
  sink(m);
  return absl::OkStatus();
}

absl::Status MeasureBlocks(const FileBenchOptions& options, int64_t block_bytes,
                           const Sink& sink) {
  TESSERA_ASSIGN_OR_RETURN(const auto tier, OpenTier(options));
  TESSERA_ASSIGN_OR_RETURN(Buffer values, RandomBytes(options.size, kSeed));
  TESSERA_ASSIGN_OR_RETURN(
      Blocks blocks, Blocks::Cut(std::move(values), DType::kU8, block_bytes));
  // Twice: extents that were never written behave otherwise, and a Put writes
  // to another place than the one before.
  TESSERA_RETURN_IF_ERROR(blocks.PutAll(*tier));
  TESSERA_RETURN_IF_ERROR(blocks.PutAll(*tier));
  TESSERA_RETURN_IF_ERROR(blocks.GetAll(*tier));
  TESSERA_RETURN_IF_ERROR(blocks.CheckRoom(*tier));
  const FileTierOptions defaults;
  TESSERA_ASSIGN_OR_RETURN(
      const auto raw,
      RawFile::Create(
          {.directory = options.directory,
           .bytes = blocks.bytes(),
           .piece_bytes = std::min(block_bytes, defaults.piece_bytes),
           .depth = static_cast<int>(options.depth),
           .uring = tier->engine_name() == "io_uring"}));
  for (const bool put : {true, false}) {
    TESSERA_RETURN_IF_ERROR(
        MeasureWay(put, *tier, blocks, *raw, options.seconds, sink));
  }
  // The last passes too.
  return blocks.CheckRoom(*tier);
}

}  // namespace

int64_t FileBenchBytes(const FileBenchOptions& options) {
  // Two versions of each block, and the raw file.
  return 3 * options.size + 2 * kGrowth;
}

absl::Status MeasureFileTier(const FileBenchOptions& options,
                             const Sink& sink) {
  TESSERA_RETURN_IF_ERROR(
      CheckFreeSpace(options.directory, FileBenchBytes(options)));
  for (const int64_t block_bytes : options.blocks) {
    TESSERA_RETURN_IF_ERROR(MeasureBlocks(options, block_bytes, sink));
  }
  return absl::OkStatus();
}

}  // namespace tessera::offload_bench
