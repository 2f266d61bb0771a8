#include "offload/tier/compressed_tier.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/codec/codec.h"
#include "offload/tier/host_tier.h"

namespace tessera::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<float> Normal(size_t count) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::shared_ptr<HostTier> Host(int64_t budget = kUnlimited) {
  return std::make_shared<HostTier>(
      std::make_shared<Accounting>("host", budget));
}

TEST(CompressedTierTest, HoldsFewerBytesAndMeasuresTheRatio) {
  const auto host = Host();
  CompressedTier tier(*CreateCodec("bf16"), host);
  EXPECT_EQ(tier.name(), "bf16 over host");
  EXPECT_EQ(tier.compression().ratio(), 1.0);
  const std::vector<float> values = Normal(10000);
  const auto bytes = std::as_bytes(std::span(values));
  TESSERA_ASSERT_OK(tier.Put("w", bytes, {Purpose::kParameters, DType::kF32}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const BlockStat stat, tier.Stat("w"));
  EXPECT_EQ(stat.bytes, 40000);
  EXPECT_LT(stat.held_bytes, 20200);
  EXPECT_EQ(stat.info.dtype, DType::kF32);
  EXPECT_EQ(host->usage()[0].usage.of(Purpose::kParameters).current,
            stat.held_bytes);
  EXPECT_EQ(tier.compression().original_bytes, 40000);
  EXPECT_NEAR(tier.compression().ratio(), 2.0, 0.02);
  std::vector<float> got(values.size());
  TESSERA_ASSERT_OK(tier.Get("w", std::as_writable_bytes(std::span(got))));
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], values[i], std::abs(values[i]) / 256);
  }
}

TEST(CompressedTierTest, SupportsCodecPerPurpose) {
  CompressedTier::Options options;
  options.codec_of[static_cast<size_t>(Purpose::kOptimizer)] =
      *CreateCodec("lossless");
  CompressedTier tier(*CreateCodec("int8"), Host(), std::move(options));
  const std::vector<float> values = Normal(1000);
  const auto bytes = std::as_bytes(std::span(values));
  std::vector<float> got(values.size());
  const auto read = [&](const char* key) {
    EXPECT_THAT(tier.Get(key, std::as_writable_bytes(std::span(got))), IsOk());
    return got;
  };
  TESSERA_ASSERT_OK(tier.Put("m", bytes, {Purpose::kOptimizer, DType::kF32}));
  TESSERA_ASSERT_OK(tier.Put("g", bytes, {Purpose::kGradients, DType::kF32}));
  EXPECT_EQ(read("m"), values);
  EXPECT_NE(read("g"), values);
  // A block that is put again with another purpose gets that purpose's codec.
  TESSERA_ASSERT_OK(tier.Put("g", bytes, {Purpose::kOptimizer, DType::kF32}));
  EXPECT_EQ(read("g"), values);
}

TEST(CompressedTierTest, ReportsLosslessPurposesAndTypes) {
  CompressedTier::Options options;
  options.codec_of[static_cast<size_t>(Purpose::kOptimizer)] =
      *CreateCodec("lossless");
  const auto tier = std::make_shared<CompressedTier>(
      *CreateCodec("bf16"), Host(), std::move(options));
  EXPECT_TRUE(tier->IsLossless(Purpose::kOptimizer, DType::kF32));
  EXPECT_FALSE(tier->IsLossless(Purpose::kParameters, DType::kF32));
  EXPECT_TRUE(tier->IsLossless(Purpose::kParameters, DType::kBF16));
  EXPECT_FALSE(tier->IsLossless(static_cast<Purpose>(99), DType::kBF16));
  EXPECT_TRUE(Host()->IsLossless(Purpose::kParameters, DType::kF32));
  // In a stack every tier counts.
  const CompressedTier stack(*CreateCodec("lossless"), tier);
  EXPECT_TRUE(stack.IsLossless(Purpose::kOptimizer, DType::kF32));
  EXPECT_FALSE(stack.IsLossless(Purpose::kParameters, DType::kF32));
}

TEST(CompressedTierTest, ABudgetHoldsMoreThanItsBytes) {
  CompressedTier tier(*CreateCodec("lossless"), Host(10000));
  const std::vector<std::byte> zeros(100000);
  TESSERA_ASSERT_OK(tier.Put("z", zeros, {}));
  EXPECT_LE(tier.usage()[0].usage.peak, 10000);
  std::vector<std::byte> got(100000, std::byte{1});
  TESSERA_ASSERT_OK(tier.Get("z", got));
  EXPECT_EQ(got, zeros);
}

TEST(CompressedTierTest, ScratchMemoryIsCountedAndLimited) {
  const auto scratch = std::make_shared<Accounting>("scratch", 50000);
  CompressedTier tier(*CreateCodec("none"), Host(),
                      {.threads = 1, .scratch = scratch});
  TESSERA_ASSERT_OK(tier.Put("fits", std::vector<std::byte>(40000), {}));
  EXPECT_GE(scratch->usage().peak, 40000);
  EXPECT_EQ(scratch->usage().current, 0);
  EXPECT_THAT(tier.Put("large", std::vector<std::byte>(60000), {}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("tier scratch"), HasSubstr("large"))));
  EXPECT_EQ(tier.usage().back().tier, "scratch");
  EXPECT_FALSE(tier.Contains("large"));
}

TEST(CompressedTierTest, RejectsPartsOfElementsAndForeignBlocks) {
  const auto host = Host();
  CompressedTier tier(*CreateCodec("lossless"), host);
  BlockInfo floats;
  floats.dtype = DType::kF32;
  EXPECT_THAT(tier.Put("w", std::vector<std::byte>(7), floats),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("7 bytes, not a whole number of elements of "
                                 "f32")));
  TESSERA_ASSERT_OK(host->Put("raw", std::vector<std::byte>(8), {}));
  std::vector<std::byte> got(8);
  EXPECT_THAT(tier.Get("raw", got),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("put into the tier below directly")));
}

}  // namespace
}  // namespace tessera::offload
