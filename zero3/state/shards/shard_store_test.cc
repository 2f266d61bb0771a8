#include "zero3/state/shards/shard_store.h"

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/tier/host_tier.h"

namespace tessera::zero3 {
namespace {

using offload::Accounting;
using offload::BlockInfo;
using offload::HostTier;
using offload::Operation;
using offload::Purpose;
using ::testing::Each;
using ::testing::HasSubstr;

// A tier that does not show its blocks, and refuses puts when told.
class FarTier final : public offload::MemoryTier {
 public:
  std::string_view name() const override { return "far"; }
  Operation StartPut(std::string_view key, std::span<const std::byte> bytes,
                     BlockInfo info) override {
    ++puts;
    if (is_full) {
      return Operation(
          absl::ResourceExhaustedError(absl::StrCat("far: no room for ", key)));
    }
    return host_.StartPut(key, bytes, info);
  }
  absl::Status Drop(std::string_view key) override { return host_.Drop(key); }
  absl::StatusOr<offload::BlockStat> Stat(std::string_view key) const override {
    return host_.Stat(key);
  }
  std::vector<std::string> Keys() const override { return host_.Keys(); }
  std::vector<offload::TierUsage> usage() const override {
    return host_.usage();
  }

  bool is_full = false;
  int puts = 0;
  int gets = 0;

 protected:
  Operation StartRead(std::string_view key, std::optional<int64_t> offset,
                      std::span<std::byte> out) override {
    ++gets;
    return offset ? host_.StartGetRange(key, *offset, out)
                  : host_.StartGet(key, out);
  }

 private:
  HostTier host_{std::make_shared<Accounting>("far", offload::kUnlimited)};
};

std::vector<ShardBlock> Blocks(std::vector<int64_t> sizes) {
  std::vector<ShardBlock> blocks;
  for (size_t i = 0; i < sizes.size(); ++i) {
    blocks.push_back({absl::StrCat("block/", i), sizes[i], DType::kU8});
  }
  return blocks;
}

std::shared_ptr<Accounting> Device() {
  return std::make_shared<Accounting>("device", offload::kUnlimited);
}

// Random openings against vectors.
void ExpectHoldsWhatIsWritten(offload::MemoryTier* tier) {
  const std::vector<int64_t> sizes = {5, 0, 64, 1, 33};
  const auto device = Device();
  auto store =
      ShardStore::Create(Blocks(sizes), Purpose::kOptimizer, tier, device);
  ASSERT_THAT(store.status(), IsOk());
  std::map<size_t, std::vector<std::byte>> model;
  for (size_t i = 0; i < sizes.size(); ++i) {
    model[i].assign(static_cast<size_t>(sizes[i]), std::byte{0});
  }
  std::mt19937_64 random(7);
  for (int step = 0; step < 2000; ++step) {
    const size_t i = random() % sizes.size();
    if (random() % 3 == 0) (*store)->Announce(random() % sizes.size());
    const auto access =
        random() % 4 == 0 ? ShardAccess::kOverwrite : ShardAccess::kUpdate;
    auto bytes = (*store)->Open(i, access);
    ASSERT_THAT(bytes.status(), IsOk());
    ASSERT_EQ(bytes->size(), model[i].size());
    if (access == ShardAccess::kUpdate) {
      ASSERT_TRUE(std::equal(bytes->begin(), bytes->end(), model[i].begin()));
    }
    const bool change = access == ShardAccess::kOverwrite || random() % 2 == 0;
    if (change) {
      for (size_t b = 0; b < bytes->size(); ++b) {
        (*bytes)[b] = model[i][b] = static_cast<std::byte>(random());
      }
    }
    ASSERT_THAT((*store)->Close(i, change), IsOk());
    if (random() % 10 == 0) {
      ASSERT_THAT((*store)->Settle(), IsOk());
    }
  }
  ASSERT_THAT((*store)->Settle(), IsOk());
  if (tier != nullptr) {
    for (const auto& [i, bytes] : model) {
      if (bytes.empty()) continue;
      std::vector<std::byte> held(bytes.size());
      ASSERT_THAT(tier->Get(absl::StrCat("block/", i), held), IsOk());
      EXPECT_EQ(held, bytes);
    }
  }
  store->reset();
  EXPECT_EQ(device->usage().current, 0);
  if (tier != nullptr) {
    EXPECT_TRUE(tier->Keys().empty());
  }
}

TEST(ShardStoreTest, HoldsWhatIsWrittenInMemory) {
  ExpectHoldsWhatIsWritten(nullptr);
}

TEST(ShardStoreTest, HoldsWhatIsWrittenInATierThatMaps) {
  HostTier tier(std::make_shared<Accounting>("host", offload::kUnlimited));
  ExpectHoldsWhatIsWritten(&tier);
}

TEST(ShardStoreTest, HoldsWhatIsWrittenInATierThatDoesNot) {
  FarTier tier;
  ExpectHoldsWhatIsWritten(&tier);
}

TEST(ShardStoreTest, BeginsWithZeros) {
  FarTier tier;
  auto store =
      ShardStore::Create(Blocks({17}), Purpose::kGradients, &tier, Device());
  ASSERT_THAT(store.status(), IsOk());
  auto bytes = (*store)->Open(0);
  ASSERT_THAT(bytes.status(), IsOk());
  EXPECT_THAT(*bytes, Each(std::byte{0}));
  EXPECT_EQ(tier.usage()[0].usage.of(Purpose::kGradients).current, 17);
}

TEST(ShardStoreTest, CountsMemoryByPurposeAndBuffersWhileOpen) {
  const auto device = Device();
  auto store = ShardStore::Create(Blocks({10, 20}), Purpose::kOptimizer,
                                  nullptr, device);
  EXPECT_EQ(device->usage().of(Purpose::kOptimizer).current, 30);
  FarTier tier;
  const auto other = Device();
  auto far =
      ShardStore::Create(Blocks({10, 20}), Purpose::kOptimizer, &tier, other);
  EXPECT_EQ(other->usage().current, 0);
  ASSERT_THAT((*far)->Open(1).status(), IsOk());
  EXPECT_EQ(other->usage().of(Purpose::kBuffers).current, 20);
  ASSERT_THAT((*far)->Close(1, false), IsOk());
  EXPECT_EQ(other->usage().current, 0);
}

TEST(ShardStoreTest, OverwritingReadsNothing) {
  FarTier tier;
  auto store =
      ShardStore::Create(Blocks({8}), Purpose::kGradients, &tier, Device());
  ASSERT_THAT((*store)->Open(0, ShardAccess::kOverwrite).status(), IsOk());
  EXPECT_EQ(tier.gets, 0);
}

TEST(ShardStoreTest, WhatCannotBeWrittenStaysAndIsTriedAgain) {
  FarTier tier;
  auto store =
      ShardStore::Create(Blocks({3, 4}), Purpose::kOptimizer, &tier, Device());
  ASSERT_THAT(store.status(), IsOk());
  tier.is_full = true;
  auto bytes = (*store)->Open(0);
  ASSERT_THAT(bytes.status(), IsOk());
  std::fill(bytes->begin(), bytes->end(), std::byte{42});
  ASSERT_THAT((*store)->Close(0, true), IsOk());
  EXPECT_THAT((*store)->Settle(), StatusIs(absl::StatusCode::kResourceExhausted,
                                           HasSubstr("no room for block/0")));
  bytes = (*store)->Open(0);
  ASSERT_THAT(bytes.status(), IsOk());
  EXPECT_THAT(*bytes, Each(std::byte{42}));
  ASSERT_THAT((*store)->Close(0, false), IsOk());
  tier.is_full = false;
  EXPECT_THAT((*store)->Settle(), IsOk());
  std::vector<std::byte> held(3);
  ASSERT_THAT(tier.Get("block/0", held), IsOk());
  EXPECT_THAT(held, Each(std::byte{42}));
}

TEST(ShardStoreTest, ATierWithoutRoomIsRefusedAndLeftEmpty) {
  HostTier tier(std::make_shared<Accounting>("host", 25));
  EXPECT_THAT(
      ShardStore::Create(Blocks({10, 20}), Purpose::kOptimizer, &tier, Device())
          .status(),
      StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_TRUE(tier.Keys().empty());
}

}  // namespace
}  // namespace tessera::zero3
