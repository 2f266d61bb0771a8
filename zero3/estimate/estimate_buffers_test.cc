// Where the bytes of an estimate are: tiers, and buffers beside the state.
#include <cstdint>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "zero3/estimate/estimate_memory.h"
#include "zero3/estimate/testing_configs.h"

namespace tessera::zero3 {
namespace {

TEST(EstimateBuffersTest, EverythingIsOffloadedByDefault) {
  ZeroConfig config;
  config.parameter_persistence_threshold = 100;
  const ModelParameters model = FourLayers();
  TESSERA_ASSERT_OK_AND_ASSIGN(const MemoryUse use,
                               EstimateMemory(model, config, {.ranks = 4}));
  // The four biases stay; the rest of the state is on the host.
  EXPECT_EQ(use.At(Purpose::kCopies, Tier::kDevice), 4 * 64 * 2);
  EXPECT_EQ(use.Of(Tier::kHost), 4 * (8192 / 4) * 16 + 4 * (64 / 4) * 14);
  EXPECT_EQ(use.Of(Tier::kFile), 0);
  // Host memory is used in place. All four weights are live at once when the
  // last layer's gradients, which have memory of their own, go to the bucket.
  EXPECT_EQ(use.Of(Purpose::kPrefetchBuffers), 0);
  EXPECT_EQ(use.Of(Purpose::kGatherBuffers), 4 * 8192 * 2);
  EXPECT_EQ(use.Of(Purpose::kReduceBuckets), (4 + 1) * (8192 + 64) * 2);
}

TEST(EstimateBuffersTest, LimitsOfLiveParametersBoundTheGatherBuffers) {
  const ModelParameters model = FourLayers();
  const auto gather = [&](auto change) {
    ZeroConfig config = Plain(3);
    config.async_prefetch = false;
    change(config);
    return EstimateMemory(model, config, {.ranks = 4})
        ->Of(Purpose::kGatherBuffers);
  };
  const int64_t layer = (8192 + 64) * 2;
  EXPECT_EQ(gather([](ZeroConfig&) {}), 4 * layer);
  EXPECT_EQ(gather([](ZeroConfig& c) { c.max_live_parameters = 0; }), layer);
  EXPECT_EQ(gather([](ZeroConfig& c) { c.max_live_parameters = 2 * 8256; }),
            2 * layer);
  EXPECT_EQ(gather([](ZeroConfig& c) { c.max_reuse_distance = 0; }), layer);
  // The next layer as well, where there is room for it.
  EXPECT_EQ(gather([](ZeroConfig& c) {
              c.max_reuse_distance = 0;
              c.async_prefetch = true;
            }),
            2 * layer);
  EXPECT_EQ(gather([](ZeroConfig& c) {
              c.max_live_parameters = 0;
              c.async_prefetch = true;
            }),
            layer);
  // The budget holds the shards, 8256 * 4 * 2 / 4 bytes, and three layers.
  EXPECT_EQ(gather([&](ZeroConfig& c) {
              c.device_parameter_budget = ByteSize((4 * layer * 100 + 59) / 60);
            }),
            3 * layer);
}

TEST(EstimateBuffersTest, ReplicasChangeNothingButTheNeedForBuckets) {
  const ModelParameters model = FourLayers();
  TESSERA_ASSERT_OK_AND_ASSIGN(const MemoryUse alone,
                               EstimateMemory(model, Plain(2), {.ranks = 1}));
  EXPECT_EQ(alone.Buffers(), 0);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const MemoryUse hybrid,
      EstimateMemory(model, Plain(2), {.ranks = 1, .replicas = 2}));
  EXPECT_EQ(hybrid.ModelState(), alone.ModelState());
  EXPECT_EQ(hybrid.Buffers(), hybrid.Of(Purpose::kReduceBuckets));
  EXPECT_EQ(hybrid.Buffers(), 2 * model.elements());
}

// Gradients of 1 bucket a layer, by how they come and how they are reduced.
TEST(EstimateBuffersTest, BucketsFollowTheStageTheLayoutAndTheOverlap) {
  const ModelParameters model = FourLayers();
  const int64_t layer = (8192 + 64) * 2;
  const auto buckets = [&](int64_t stage, LayoutKind layout, bool overlap,
                           bool holds = false) {
    ZeroConfig config = Plain(stage);
    config.layout = layout;
    config.overlap = overlap;
    config.reduce_bucket_size = ByteSize(layer);
    return EstimateMemory(model, config, {.ranks = 4, .holds_gradients = holds})
        ->Of(Purpose::kReduceBuckets);
  };
  for (const bool overlap : {false, true}) {
    const int64_t both = overlap ? 2 : 1;
    EXPECT_EQ(buckets(0, LayoutKind::kChunks, overlap), 0);
    EXPECT_EQ(buckets(1, LayoutKind::kChunks, overlap), both * layer);
    EXPECT_EQ(buckets(1, LayoutKind::kBalanced, overlap), 0);
    // With the gradients of the layer, which are not written in place.
    EXPECT_EQ(buckets(2, LayoutKind::kChunks, overlap), (both + 1) * layer);
    EXPECT_EQ(buckets(2, LayoutKind::kBalanced, overlap), both * layer);
    // All of them, and the first bucket that is made ready.
    EXPECT_EQ(buckets(2, LayoutKind::kChunks, overlap, true), 5 * layer);
    EXPECT_EQ(buckets(2, LayoutKind::kBalanced, overlap, true), 4 * layer);
  }
}

TEST(EstimateBuffersTest, WithAFileTheHostKeepsToItsEffectiveBudget) {
  const ModelParameters model = FourLayers();
  ZeroConfig config;
  config.parameter_persistence_threshold = 0;
  config.cpu_budget = ByteSize(300'000);
  config.swap_directory = "/swap";
  TESSERA_ASSERT_OK_AND_ASSIGN(const MemoryUse use,
                               EstimateMemory(model, config, {.ranks = 1}));
  // 180000 bytes: values and gradients, 66048 each, one master of 32768, and
  // the four of 256; then no moments of a weight but those of two biases.
  EXPECT_EQ(use.At(Purpose::kCopies, Tier::kHost), 66'048);
  EXPECT_EQ(use.At(Purpose::kGradients, Tier::kHost), 66'048);
  EXPECT_EQ(use.At(Purpose::kMasterWeights, Tier::kHost), 32'768 + 4 * 256);
  EXPECT_EQ(use.At(Purpose::kMoments, Tier::kHost), 4 * 512);
  EXPECT_EQ(use.At(Purpose::kMoments, Tier::kFile), 4 * 65'536);
  // Near memory for three parameters in a row (a bias between two weights),
  // with all that is offloaded of them. It lasts, beside all values when they
  // are gathered and all gradients in their bucket.
  EXPECT_EQ(use.At(Purpose::kPrefetchBuffers, Tier::kDevice),
            2 * (16'384 + 16'384 + 32'768 + 65'536) + 128 + 128 + 256 + 512);
  EXPECT_EQ(use.Buffers(), use.Of(Purpose::kPrefetchBuffers) + 66'048 + 66'048);
  config.overlap = false;
  TESSERA_ASSERT_OK_AND_ASSIGN(const MemoryUse alone,
                               EstimateMemory(model, config, {.ranks = 1}));
  EXPECT_LT(alone.Buffers(), use.Buffers());
}

}  // namespace
}  // namespace tessera::zero3
