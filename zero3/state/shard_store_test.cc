#include "zero3/state/shard_store.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/tier/host_tier.h"
#include "zero3/state/testing/tiers.h"

namespace tessera::zero3 {
namespace {

using offload::Accounting;
using offload::HostTier;
using offload::Purpose;
using ::testing::Each;
using testing::FarTier;
using ::testing::HasSubstr;

std::vector<ShardBlock> Blocks(const std::vector<int64_t>& sizes) {
  std::vector<ShardBlock> blocks;
  for (size_t i = 0; i < sizes.size(); ++i) {
    blocks.push_back({absl::StrCat("block/", i), sizes[i], DType::kU8});
  }
  return blocks;
}

std::shared_ptr<Accounting> Device() {
  return std::make_shared<Accounting>("device", offload::kUnlimited);
}

// Puts all blocks in one tier, or in memory.
absl::StatusOr<std::unique_ptr<ShardStore>> CreateIn(
    offload::MemoryTier* tier, std::vector<ShardBlock> blocks, Purpose purpose,
    std::shared_ptr<Accounting> device, int64_t near_bytes = 0) {
  for (ShardBlock& block : blocks) block.tier = tier;
  ShardStoreOptions options = {.purpose = purpose, .device = device};
  if (near_bytes > 0) {
    options.prefetch = std::make_shared<ShardPrefetch>(
        ShardPrefetch::Options{.near_bytes = near_bytes, .device = device});
  }
  return ShardStore::Create(std::move(blocks), options);
}

// Compares random accesses with vectors.
void ExpectHoldsWhatIsWritten(offload::MemoryTier* tier) {
  const std::vector<int64_t> sizes = {5, 0, 64, 1, 33};
  const auto device = Device();
  auto store = CreateIn(tier, Blocks(sizes), Purpose::kOptimizer, device);
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
  auto store = CreateIn(&tier, Blocks({17}), Purpose::kGradients, Device());
  ASSERT_THAT(store.status(), IsOk());
  auto bytes = (*store)->Open(0);
  ASSERT_THAT(bytes.status(), IsOk());
  EXPECT_THAT(*bytes, Each(std::byte{0}));
  EXPECT_EQ(tier.usage()[0].usage.of(Purpose::kGradients).current, 17);
}

TEST(ShardStoreTest, CountsMemoryByPurposeAndNearMemoryAsBuffers) {
  const auto device = Device();
  auto store = CreateIn(nullptr, Blocks({10, 20}), Purpose::kOptimizer, device);
  EXPECT_EQ(device->usage().of(Purpose::kOptimizer).current, 30);
  FarTier tier;
  const auto other = Device();
  auto far = CreateIn(&tier, Blocks({10, 20}), Purpose::kOptimizer, other);
  // Three buffers of the largest size, used or not.
  EXPECT_EQ(other->usage().of(Purpose::kBuffers).current, 60);
  ASSERT_THAT((*far)->Open(1).status(), IsOk());
  ASSERT_THAT((*far)->Close(1, false), IsOk());
  // The peak includes the zeros of one block while it is written.
  EXPECT_EQ(other->usage().peak, 80);
  EXPECT_EQ(other->usage().current, 60);
  far->reset();
  EXPECT_EQ(other->usage().current, 0);
}

TEST(ShardStoreTest, BlocksThatAreOpenAtOnceHaveTheNearMemoryTheyNeed) {
  FarTier tier;
  const auto device = Device();
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto store, CreateIn(&tier, Blocks({10, 20, 30}), Purpose::kParameters,
                           device, /*near_bytes=*/20));
  EXPECT_EQ(device->usage().current, 20);
  for (size_t i = 0; i < 3; ++i) ASSERT_THAT(store->Open(i).status(), IsOk());
  EXPECT_EQ(device->usage().current, 60);
  for (size_t i = 0; i < 3; ++i) ASSERT_THAT(store->Close(i, true), IsOk());
  ASSERT_THAT(store->Settle(), IsOk());
  EXPECT_EQ(device->usage().peak, 60);
}

TEST(ShardStoreTest, OverwritingReadsNothing) {
  FarTier tier;
  auto store = CreateIn(&tier, Blocks({8}), Purpose::kGradients, Device());
  ASSERT_THAT((*store)->Open(0, ShardAccess::kOverwrite).status(), IsOk());
  EXPECT_EQ(tier.gets, 0);
}

TEST(ShardStoreTest, WhatIsDiscardedIsNotWritten) {
  FarTier tier;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto store,
      CreateIn(&tier, Blocks({8}), Purpose::kActivations, Device()));
  const int puts = tier.puts;
  for (const bool discards : {true, false}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto bytes,
                                 store->Open(0, ShardAccess::kOverwrite));
    std::fill(bytes.begin(), bytes.end(), std::byte{7});
    ASSERT_THAT(store->Close(0, /*changed=*/true), IsOk());
    if (discards) {
      ASSERT_THAT(store->Discard(0), IsOk());
    }
    ASSERT_THAT(store->Settle(), IsOk());
    EXPECT_EQ(tier.puts, puts + (discards ? 0 : 1));
  }
  ASSERT_THAT(store->Open(0, ShardAccess::kOverwrite).status(), IsOk());
  EXPECT_THAT(store->Discard(0), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("is in use")));
  HostTier host(std::make_shared<Accounting>("host", offload::kUnlimited));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto in_place,
      CreateIn(&host, Blocks({8}), Purpose::kActivations, Device()));
  EXPECT_THAT(in_place->Discard(0), IsOk());
}

TEST(ShardStoreTest, WhatCannotBeWrittenStaysAndIsTriedAgain) {
  FarTier tier;
  auto store = CreateIn(&tier, Blocks({3, 4}), Purpose::kOptimizer, Device());
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

// Opens all blocks of both stores, which contain `step`, and sets them to
// step + 1. In the first step the next blocks are announced.
void UpdateBlocks(int step, ShardPrefetch& prefetch, ShardStore& first,
                  ShardStore& second) {
  for (size_t i = 0; i < 4; ++i) {
    if (step == 0 && i + 1 < 4) {
      first.Announce(i + 1);
      second.Announce(i + 1);
    }
    for (ShardStore* store : {&first, &second}) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto bytes, store->Open(i));
      EXPECT_THAT(bytes, Each(static_cast<std::byte>(step)));
    }
    EXPECT_THAT(prefetch.EndStep(),
                StatusIs(absl::StatusCode::kFailedPrecondition));
    for (ShardStore* store : {&first, &second}) {
      const auto bytes = *store->Open(i);
      std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(step + 1));
      ASSERT_THAT(store->Close(i, false), IsOk());
      ASSERT_THAT(store->Close(i, true), IsOk());
    }
  }
}

// The stores of a state share one order of uses: in the first step announced
// blocks are prefetched, later the blocks in the order of the previous step.
TEST(ShardStoreTest, StoresShareOneNearMemoryAndReportItsTraffic) {
  FarTier tier;
  const auto device = Device();
  const auto prefetch = std::make_shared<ShardPrefetch>(
      ShardPrefetch::Options{.near_bytes = 30, .device = device});
  std::vector<ShardBlock> masters = Blocks({10, 10, 10, 10});
  std::vector<ShardBlock> moments = Blocks({10, 10, 10, 10});
  for (ShardBlock& block : masters) block.tier = &tier;
  for (ShardBlock& block : moments) {
    block.tier = &tier;
    block.key = "moment/" + block.key;
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto first,
      ShardStore::Create(masters, {.device = device, .prefetch = prefetch}));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto second,
      ShardStore::Create(moments, {.device = device, .prefetch = prefetch}));
  EXPECT_EQ(device->usage().current, 30);
  for (int step = 0; step < 4; ++step) {
    TESSERA_ASSERT_OK(prefetch->BeginStep());
    TESSERA_ASSERT_OK(prefetch->BeginStep());  // Nothing.
    ASSERT_NO_FATAL_FAILURE(UpdateBlocks(step, *prefetch, *first, *second));
    TESSERA_ASSERT_OK(first->Settle());
    TESSERA_ASSERT_OK_AND_ASSIGN(const ShardTraffic traffic,
                                 prefetch->EndStep());
    // At most three of eight stay for the next step.
    EXPECT_GE(traffic.bytes_read, 50);
    EXPECT_EQ(traffic.bytes_written, 80);
    EXPECT_GE(traffic.stall_ns, 0);
    EXPECT_EQ(traffic.near_bytes, 30);
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const ShardTraffic nothing, prefetch->EndStep());
  EXPECT_EQ(nothing, ShardTraffic());
}

TEST(ShardStoreTest, EachBlockIsInItsOwnTier) {
  FarTier far;
  HostTier host(std::make_shared<Accounting>("host", offload::kUnlimited));
  const auto device = Device();
  std::vector<ShardBlock> blocks = Blocks({1, 2, 4});
  blocks[1].tier = &host;
  blocks[2].tier = &far;
  TESSERA_ASSERT_OK_AND_ASSIGN(auto store,
                               ShardStore::Create(blocks, {.device = device}));
  EXPECT_TRUE(store->in_tier());
  EXPECT_EQ(device->usage().of(Purpose::kOptimizer).current, 1);
  for (size_t i = 0; i < 3; ++i) {
    store->Announce(i);
    auto bytes = store->Open(i);
    ASSERT_THAT(bytes.status(), IsOk());
    std::fill(bytes->begin(), bytes->end(), static_cast<std::byte>(i + 1));
    // Host memory is used in place; near memory is only for the far tier.
    EXPECT_EQ(device->usage().of(Purpose::kBuffers).current, 3 * 4);
    ASSERT_THAT(store->Close(i, true), IsOk());
  }
  ASSERT_THAT(store->Settle(), IsOk());
  std::vector<std::byte> held(2);
  ASSERT_THAT(host.Get("block/1", held), IsOk());
  EXPECT_THAT(held, Each(std::byte{2}));
  // Blocks in tiers are not changed.
  TESSERA_EXPECT_OK(store->SetToZeros());
  EXPECT_THAT(*store->Open(0), Each(std::byte{0}));
  EXPECT_THAT(*store->Open(1), Each(std::byte{2}));
  EXPECT_THAT(*store->Open(2), Each(std::byte{3}));
}

TEST(ShardStoreTest, ATierWithoutRoomIsRefusedAndLeftEmpty) {
  HostTier tier(std::make_shared<Accounting>("host", 25));
  EXPECT_THAT(
      CreateIn(&tier, Blocks({10, 20}), Purpose::kOptimizer, Device()).status(),
      StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_TRUE(tier.Keys().empty());
}

}  // namespace
}  // namespace tessera::zero3
