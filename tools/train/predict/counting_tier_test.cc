#include "tools/train/predict/counting_tier.h"

#include <memory>
#include <vector>

#include "base/status_matchers.h"
#include "base/tensor/counting_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using offload::BlockInfo;
using offload::Purpose;
using ::testing::ElementsAre;

// A span of memory that must not be accessed.
std::span<std::byte> Untouchable(int64_t bytes) {
  static const auto memory =
      std::make_shared<CountingMemory>(CountingMemory::Access::kTrapped);
  static auto& buffers = *new std::vector<Buffer>;
  buffers.push_back(*Buffer::Allocate(memory, static_cast<size_t>(bytes)));
  return buffers.back().bytes();
}

TEST(CountingTierTest, CountsBlocksByPurposeWithoutTouchingThem) {
  const auto accounting =
      std::make_shared<offload::Accounting>("files", offload::kUnlimited);
  const auto memory =
      std::make_shared<CountingMemory>(CountingMemory::Access::kTrapped);
  CountingTier tier(accounting, memory, /*in_place=*/false);
  const BlockInfo moments = {Purpose::kOptimizer, DType::kF32};
  TESSERA_ASSERT_OK(tier.Put("a", Untouchable(1000), moments));
  TESSERA_ASSERT_OK(
      tier.Put("b", Untouchable(500), {Purpose::kGradients, DType::kF32}));
  // Replaces in place if the size is equal; otherwise both exist for a moment.
  TESSERA_ASSERT_OK(tier.Put("a", Untouchable(1000), moments));
  EXPECT_EQ(accounting->usage().peak, 1500);
  EXPECT_EQ(accounting->usage().of(Purpose::kOptimizer).current, 1000);
  EXPECT_EQ(memory->live_bytes(), 1500);
  TESSERA_ASSERT_OK(tier.Put("a", Untouchable(200), moments));
  EXPECT_EQ(accounting->usage().peak, 1700);
  EXPECT_EQ(accounting->usage().current, 700);
  TESSERA_ASSERT_OK(tier.Get("b", Untouchable(500)));
  TESSERA_ASSERT_OK(tier.GetRange("b", 100, Untouchable(400)));
  EXPECT_THAT(tier.Keys(), ElementsAre("a", "b"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const offload::BlockStat stat, tier.Stat("b"));
  EXPECT_EQ(stat.bytes, 500);
  TESSERA_ASSERT_OK(tier.Drop("b"));
  EXPECT_EQ(memory->live_bytes(), 200);
}

TEST(CountingTierTest, BlocksOfAHostTierAreUsedInPlace) {
  const auto accounting =
      std::make_shared<offload::Accounting>("host", offload::kUnlimited);
  const auto memory =
      std::make_shared<CountingMemory>(CountingMemory::Access::kTrapped);
  CountingTier tier(accounting, memory, /*in_place=*/true);
  EXPECT_THAT(tier.Map("a"), StatusIs(absl::StatusCode::kNotFound));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const offload::BlockView made,
      tier.MapNew("a", 1000, {Purpose::kOptimizer, DType::kF32}));
  EXPECT_EQ(made.bytes.size(), 1000u);
  TESSERA_ASSERT_OK_AND_ASSIGN(const offload::BlockView found, tier.Map("a"));
  EXPECT_EQ(found.bytes.data(), made.bytes.data());
  EXPECT_EQ(accounting->usage().of(Purpose::kOptimizer).current, 1000);
  EXPECT_EQ(memory->live_bytes(), 1000);
}

TEST(CountingTierTest, RejectsLikeRealTier) {
  CountingTier tier(std::make_shared<offload::Accounting>("files", 100));
  EXPECT_THAT(tier.Get("a", Untouchable(10)),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(tier.Drop("a"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(tier.Stat("a"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(tier.Put("a", Untouchable(101), {}),
              StatusIs(absl::StatusCode::kResourceExhausted));
  TESSERA_ASSERT_OK(tier.Put("a", Untouchable(100), {}));
  EXPECT_THAT(tier.Get("a", Untouchable(10)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(tier.GetRange("a", 95, Untouchable(10)),
              StatusIs(absl::StatusCode::kOutOfRange));
  // Blocks in files and compressed blocks are accessed through buffers.
  EXPECT_THAT(tier.Map("a"), StatusIs(absl::StatusCode::kUnimplemented));
}

}  // namespace
}  // namespace tessera::train
