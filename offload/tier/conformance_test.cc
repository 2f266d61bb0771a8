// Runs the conformance suite on every tier and on stacks of tiers.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "offload/codec/codec.h"
#include "offload/tier/compressed_tier.h"
#include "offload/tier/file_tier.h"
#include "offload/tier/host_tier.h"
#include "offload/tier/pinned_arena.h"
#include "offload/tier/spill_tier.h"
#include "offload/tier/testing/tier_model.h"

namespace tessera::offload {
namespace {

std::shared_ptr<Accounting> Budget(const char* name, int64_t bytes) {
  return std::make_shared<Accounting>(name, bytes);
}

std::shared_ptr<MemoryTier> Heap(int64_t budget) {
  return std::make_shared<HostTier>(Budget("host", budget));
}

std::shared_ptr<MemoryTier> Pinned(int64_t budget) {
  // Space for a second version, and for fragmentation.
  auto arena = PinnedArena::Create({.cap = 4 * budget});
  return std::make_shared<HostTier>(Budget("pinned", budget), *arena);
}

FileTierOptions FileOptions(IoEngineKind engine, bool direct) {
  FileTierOptions options;
  options.path = testing::TempDir();
  options.direct = direct;
  options.engine = engine;
  options.queue_depth = 4;
  // Small pieces, so that blocks have several and wait for buffers.
  options.piece_bytes = 8192;
  options.bounce_bytes = 3 * 8192;
  options.space.growth_bytes = 1 << 20;
  return options;
}

std::shared_ptr<MemoryTier> File(IoEngineKind engine, bool direct,
                                 int64_t budget) {
  auto tier =
      FileTier::Create(Budget("file", budget), FileOptions(engine, direct));
  EXPECT_TRUE(tier.ok()) << tier.status();
  return *std::move(tier);
}

std::shared_ptr<MemoryTier> Compressed(const char* codec,
                                       std::shared_ptr<MemoryTier> base) {
  CompressedTier::Options options;
  options.threads = 2;
  return std::make_shared<CompressedTier>(*CreateCodec(codec), std::move(base),
                                          options);
}

// Writes in place if the size is equal, else both exist for a moment.
int64_t HostExtra(std::optional<int64_t> old, int64_t bytes) {
  return old == bytes ? 0 : bytes;
}
int64_t FileExtra(std::optional<int64_t> old, int64_t bytes) {
  return std::max<int64_t>(0, bytes - old.value_or(0));
}

TierCase FileCase(std::string name, IoEngineKind engine, bool direct) {
  return {std::move(name),
          [=](int64_t budget) { return File(engine, direct, budget); }, true,
          FileExtra};
}

constexpr auto kThreads = IoEngineKind::kThreads;
constexpr auto kBest = IoEngineKind::kAuto;

INSTANTIATE_TEST_SUITE_P(
    Host, TierConformanceTest,
    testing::Values(TierCase{"Heap", Heap, true, HostExtra},
                    TierCase{"PinnedArena", Pinned, true, HostExtra}),
    TierCaseName);

INSTANTIATE_TEST_SUITE_P(
    File, TierConformanceTest,
    testing::Values(FileCase("UringDirect", kBest, true),
                    FileCase("UringCached", kBest, false),
                    FileCase("ThreadsDirect", kThreads, true),
                    FileCase("ThreadsCached", kThreads, false)),
    TierCaseName);

INSTANTIATE_TEST_SUITE_P(
    Stacks, TierConformanceTest,
    testing::Values(
        TierCase{"LosslessOverHost",
                 [](int64_t b) { return Compressed("lossless", Heap(b)); },
                 false, nullptr},
        TierCase{
            "NoneOverFile",
            [](int64_t b) { return Compressed("none", File(kBest, true, b)); },
            false, nullptr},
        TierCase{"HostOverFile",
                 [](int64_t b) {
                   return std::make_shared<SpillTier>(
                       Heap(b), File(kBest, true, kUnlimited));
                 },
                 false, nullptr},
        TierCase{"SmallHostOverFile",
                 [](int64_t b) {
                   return std::make_shared<SpillTier>(Heap(6000),
                                                      File(kBest, true, b));
                 },
                 false, nullptr},
        TierCase{"LosslessOverFile",
                 [](int64_t b) {
                   return Compressed("lossless", File(kBest, true, b));
                 },
                 false, nullptr}),
    TierCaseName);

}  // namespace
}  // namespace tessera::offload
