#include "tools/offload_bench/measure_file.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "offload/prefetch/prefetcher.h"
#include "offload/tier/file_tier.h"
#include "tools/offload_bench/blocks.h"
#include "tools/offload_bench/raw_file.h"

namespace tessera::offload_bench {

namespace {

using offload::Accounting;
using offload::FileTier;
using offload::FileTierOptions;
using offload::kUnlimited;

constexpr uint64_t kFileSeed = 5;
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
  TESSERA_ASSIGN_OR_RETURN(Buffer values, RandomBytes(options.size, kFileSeed));
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

namespace {

using offload::Prefetcher;
using offload::PrefetchOptions;
using offload::StepReport;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kPrefetchSeed = 6;
constexpr int64_t kMostBlocks = 48;
constexpr int64_t kPart = 4;  // One in kPart blocks is near.
constexpr double kNano = 1e-9;

// Passes over the block until the time is over.
void Compute(std::span<const std::byte> block, double seconds) {
  constexpr size_t kSlice = 64 << 10;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  uint64_t sum = 0;
  for (size_t at = 0; Clock::now() < end; at = (at + kSlice) % block.size()) {
    for (const std::byte byte :
         block.subspan(at, std::min(kSlice, block.size() - at))) {
      sum += std::to_integer<uint64_t>(byte);
    }
  }
  asm volatile("" : : "r"(sum));
}

absl::StatusOr<StepReport> RunStep(Prefetcher& prefetcher, int64_t blocks,
                                   double seconds) {
  TESSERA_RETURN_IF_ERROR(prefetcher.BeginStep());
  for (int64_t i = 0; i < blocks; ++i) {
    const std::string key = absl::StrCat(i);
    TESSERA_ASSIGN_OR_RETURN(const auto block, prefetcher.Use(key));
    Compute(block, seconds);
    TESSERA_RETURN_IF_ERROR(prefetcher.Done(key));
  }
  return prefetcher.EndStep();
}

// Bytes a second of the tier alone, the best of some passes with all blocks in
// flight.
absl::StatusOr<double> TierRate(FileTier& tier, Blocks& blocks) {
  double best = INFINITY;
  const Pass pass = Timed([&] { return blocks.GetAll(tier); });
  for (int i = 0; i < 4; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const double seconds, pass());
    best = std::min(best, seconds);
  }
  return static_cast<double>(blocks.bytes()) / best;
}

struct Steps {
  std::vector<double> with, bound, without;
  int64_t depth = 0;
};

absl::StatusOr<Steps> RunSteps(FileTier& tier, const Blocks& blocks,
                               double rate, double least_seconds) {
  PrefetchOptions options;
  options.budget =
      std::max<int64_t>(blocks.count() / kPart, 2) * blocks.block_bytes();
  options.load_bytes_per_second = static_cast<int64_t>(rate);
  TESSERA_ASSIGN_OR_RETURN(const auto with, Prefetcher::Create(tier, options));
  options.prefetch = false;
  TESSERA_ASSIGN_OR_RETURN(const auto without,
                           Prefetcher::Create(tier, options));
  const double compute = static_cast<double>(blocks.block_bytes()) / rate;
  // Records the order, and lets the queue find its depth.
  for (int i = 0; i < 3; ++i) {
    TESSERA_RETURN_IF_ERROR(RunStep(*with, blocks.count(), compute).status());
  }
  Steps steps;
  const auto start = Clock::now();
  while (std::ssize(steps.with) < kLeastTurns ||
         Clock::now() - start < std::chrono::duration<double>(least_seconds)) {
    TESSERA_ASSIGN_OR_RETURN(const StepReport report,
                             RunStep(*with, blocks.count(), compute));
    TESSERA_ASSIGN_OR_RETURN(const StepReport other,
                             RunStep(*without, blocks.count(), compute));
    steps.with.push_back(static_cast<double>(report.step_ns) * kNano);
    steps.bound.push_back(static_cast<double>(report.bound_ns) * kNano);
    steps.without.push_back(static_cast<double>(other.step_ns) * kNano);
    steps.depth = report.load_depth;
  }
  return steps;
}

std::string NoteOf(const FileTier& tier, const Steps& steps, double before,
                   double after) {
  const Comparison against = Compare(steps.with, steps.without);
  std::string note =
      absl::StrFormat("%.2fx as fast as without prefetch, depth %d",
                      against.share, steps.depth);
  if (std::fabs(after / before - 1) > 0.2) {
    absl::StrAppendFormat(&note,
                          "; the tier alone: %.2f GB/s before, %.2f after",
                          before * kNano, after * kNano);
  }
  if (!tier.direct()) {
    absl::StrAppend(&note,
                    "; PAGE CACHE, not the device: ", tier.why_not_direct());
  }
  return note;
}

absl::Status MeasureBlocks(const PrefetchBenchOptions& options,
                           int64_t block_bytes, const Sink& sink) {
  const int64_t count =
      std::clamp(options.size / block_bytes, int64_t{1}, kMostBlocks);
  TESSERA_ASSIGN_OR_RETURN(Buffer values,
                           RandomBytes(count * block_bytes, kPrefetchSeed));
  TESSERA_ASSIGN_OR_RETURN(
      Blocks blocks, Blocks::Cut(std::move(values), DType::kU8, block_bytes));
  FileTierOptions file;
  file.path = options.directory;
  file.queue_depth = static_cast<int>(options.depth);
  TESSERA_ASSIGN_OR_RETURN(
      const auto tier,
      FileTier::Create(std::make_shared<Accounting>("file", kUnlimited),
                       std::move(file)));
  TESSERA_RETURN_IF_ERROR(blocks.PutAll(*tier));
  TESSERA_ASSIGN_OR_RETURN(const double before, TierRate(*tier, blocks));
  TESSERA_ASSIGN_OR_RETURN(Steps steps,
                           RunSteps(*tier, blocks, before, options.seconds));
  TESSERA_ASSIGN_OR_RETURN(const double after, TierRate(*tier, blocks));
  Measurement m;
  m.what = "prefetch";
  m.name = absl::StrCat(count, " blocks, room for ",
                        std::max<int64_t>(count / kPart, 2));
  m.operation = "step";
  m.data = "random bytes";
  m.block_bytes = block_bytes;
  m.bytes = blocks.bytes();
  m.limit = "bound";
  m.note = NoteOf(*tier, steps, before, after);
  m.times = Compare(std::move(steps.with), std::move(steps.bound));
  sink(m);
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasurePrefetch(const PrefetchBenchOptions& options,
                             const Sink& sink) {
  constexpr int64_t kGrowth = int64_t{64} << 20;  // Growth of the tier's file.
  TESSERA_RETURN_IF_ERROR(
      CheckFreeSpace(options.directory, options.size + kGrowth));
  for (const int64_t block_bytes : options.blocks) {
    TESSERA_RETURN_IF_ERROR(MeasureBlocks(options, block_bytes, sink));
  }
  return absl::OkStatus();
}

}  // namespace tessera::offload_bench
