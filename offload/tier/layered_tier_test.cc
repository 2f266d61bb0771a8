#include "offload/tier/layered_tier.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/tier/file_tier.h"
#include "offload/tier/host_tier.h"
#include "offload/tier/tier_model.h"

namespace tessera::offload {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

class LayeredTierTest : public testing::Test {
 protected:
  void Make(int64_t front_budget, int64_t back_budget,
            LayeredTier::Options options = {}) {
    front_ = std::make_shared<HostTier>(
        std::make_shared<Accounting>("near", front_budget));
    back_ = std::make_shared<HostTier>(
        std::make_shared<Accounting>("far", back_budget));
    tier_ = *LayeredTier::Create(front_, back_, std::move(options));
  }
  Bytes Read(const std::string& key) {
    Bytes got(static_cast<size_t>(tier_->Stat(key)->bytes));
    EXPECT_TRUE(tier_->Get(key, got).ok());
    return got;
  }

  std::shared_ptr<HostTier> front_, back_;
  std::unique_ptr<LayeredTier> tier_;
};

TEST_F(LayeredTierTest, TheLeastRecentlyUsedLeaves) {
  Make(300, 1000);
  for (const char* key : {"a", "b", "c"}) {
    TESSERA_ASSERT_OK(tier_->Put(key, PatternBytes(100, key[0]), {}));
  }
  EXPECT_EQ(Read("a"), PatternBytes(100, 'a'));
  TESSERA_ASSERT_OK(tier_->Put("d", PatternBytes(100, 'd'), {}));
  EXPECT_THAT(front_->Keys(), ElementsAre("a", "c", "d"));
  EXPECT_THAT(back_->Keys(), ElementsAre("b"));
  EXPECT_EQ(Read("b"), PatternBytes(100, 'b'));
  EXPECT_FALSE(tier_->InFront("b"));  // Get moves nothing.
  TESSERA_ASSERT_OK(tier_->Prefetch("b"));
  EXPECT_TRUE(tier_->InFront("b"));
  EXPECT_THAT(back_->Keys(), ElementsAre("b", "c"));
}

TEST_F(LayeredTierTest, TheFarthestNextUseLeavesAndNothingNearerComes) {
  std::map<std::string, uint64_t, std::less<>> next = {
      {"a", 10}, {"b", 30}, {"c", 20}, {"d", 5}, {"late", 99}};
  Make(300, 1000, {.victims = FarthestNextUse([&next](std::string_view key) {
                     return next.find(key)->second;
                   })});
  for (const char* key : {"a", "b", "c", "d"}) {
    TESSERA_ASSERT_OK(tier_->Put(key, PatternBytes(100, key[0]), {}));
  }
  EXPECT_THAT(front_->Keys(), ElementsAre("a", "c", "d"));
  // Wanted after all that is there: it stays behind.
  TESSERA_ASSERT_OK(tier_->Put("late", PatternBytes(100, 'l'), {}));
  EXPECT_FALSE(tier_->InFront("late"));
  TESSERA_ASSERT_OK(tier_->Prefetch("late"));
  EXPECT_FALSE(tier_->InFront("late"));
  EXPECT_EQ(Read("late"), PatternBytes(100, 'l'));
}

TEST_F(LayeredTierTest, WhatDidNotChangeIsNotWrittenAgain) {
  Make(100, 1000);
  TESSERA_ASSERT_OK(tier_->Put("a", PatternBytes(100, 'a'), {}));
  TESSERA_ASSERT_OK(tier_->Put("b", PatternBytes(100, 'b'), {}));
  TESSERA_ASSERT_OK(tier_->Prefetch("a"));  // b is written, a read.
  // Spoiled behind the tier's back: a write would mend it.
  TESSERA_ASSERT_OK(back_->Put("a", PatternBytes(100, 'x'), {}));
  TESSERA_ASSERT_OK(tier_->Prefetch("b"));
  EXPECT_EQ(Read("a"), PatternBytes(100, 'x'));
}

TEST_F(LayeredTierTest, ViewsStayInFrontAndTheirWritesAreKept) {
  Make(200, 1000);
  TESSERA_ASSERT_OK(tier_->Put("a", PatternBytes(200, 1), {}));
  TESSERA_ASSERT_OK(tier_->Put("b", PatternBytes(150, 2), {}));
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(const BlockView view, tier_->Map("a"));
    view.bytes[0] = std::byte{9};
    EXPECT_THAT(tier_->Map("b"),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("nothing may leave for it")));
    TESSERA_ASSERT_OK(tier_->Prefetch("b"));  // A hint: no error.
    EXPECT_FALSE(tier_->InFront("b"));
  }
  TESSERA_ASSERT_OK(tier_->Prefetch("b"));
  EXPECT_FALSE(tier_->InFront("a"));
  EXPECT_EQ(Read("a")[0], std::byte{9});
}

TEST_F(LayeredTierTest, BothFullIsAnErrorThatChangesNoBlock) {
  Make(100, 150);
  TESSERA_ASSERT_OK(tier_->Put("a", PatternBytes(100, 'a'), {}));
  TESSERA_ASSERT_OK(tier_->Put("b", PatternBytes(100, 'b'), {}));
  EXPECT_THAT(
      tier_->Put("c", PatternBytes(100, 'c'), {}),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("tier far")));
  EXPECT_THAT(tier_->Put("a", PatternBytes(160, 'x'), {}),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(tier_->Keys(), ElementsAre("a", "b"));
  EXPECT_EQ(Read("a"), PatternBytes(100, 'a'));
  EXPECT_EQ(Read("b"), PatternBytes(100, 'b'));
}

TEST_F(LayeredTierTest, LargerThanTheFrontGoesToTheBackAlone) {
  Make(100, 1000);
  TESSERA_ASSERT_OK(tier_->Put("a", PatternBytes(50, 1), {}));
  TESSERA_ASSERT_OK(tier_->Put("large", PatternBytes(500, 2), {}));
  EXPECT_TRUE(tier_->InFront("a"));  // Nothing left for what never fits.
  TESSERA_ASSERT_OK(tier_->Prefetch("large"));
  EXPECT_TRUE(tier_->InFront("a"));
  TESSERA_ASSERT_OK(tier_->Put("a", PatternBytes(500, 3), {}));
  EXPECT_THAT(front_->Keys(), testing::IsEmpty());
  EXPECT_EQ(Read("a"), PatternBytes(500, 3));
}

TEST_F(LayeredTierTest, RefusesAFrontThatHoldsBlocksOrCannotMap) {
  const auto host =
      std::make_shared<HostTier>(std::make_shared<Accounting>("host", 1000));
  TESSERA_ASSERT_OK(host->Put("k", Bytes(1), {}));
  EXPECT_THAT(LayeredTier::Create(host, host, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("tier host cannot be the front")));
}

// Flushed, it survives in the kept file behind; unflushed, the older is there.
TEST_F(LayeredTierTest, FlushReachesTheFile) {
  const std::string path = testing::TempDir() + "/layered";
  std::remove(path.c_str());
  FileTierOptions options;
  options.path = path;
  options.keep = true;
  const auto make = [&] {
    auto file = FileTier::Create(
        std::make_shared<Accounting>("file", kUnlimited), options);
    auto front =
        std::make_shared<HostTier>(std::make_shared<Accounting>("near", 1000));
    return *LayeredTier::Create(
        front, std::shared_ptr<MemoryTier>(*std::move(file)), {});
  };
  tier_ = make();
  TESSERA_ASSERT_OK(tier_->Put("a", PatternBytes(100, 1), {}));
  TESSERA_ASSERT_OK(tier_->Flush());
  TESSERA_ASSERT_OK(tier_->Put("a", PatternBytes(100, 2), {}));
  EXPECT_EQ(Read("a"), PatternBytes(100, 2));
  tier_.reset();
  tier_ = make();
  EXPECT_THAT(tier_->Keys(), ElementsAre("a"));
  EXPECT_FALSE(tier_->InFront("a"));
  EXPECT_EQ(Read("a"), PatternBytes(100, 1));
}

}  // namespace
}  // namespace tessera::offload
