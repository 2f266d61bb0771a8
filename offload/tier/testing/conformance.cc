
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/tier/testing/tier_model.h"

namespace tessera::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Bytes = std::vector<std::byte>;
constexpr int64_t kAmple = 64 << 20;

TEST_P(TierConformanceTest, AgreesWithAMapOverThousandsOfSteps) {
  TierModel model(GetParam(), kAmple, 1);
  for (int step = 0; step < 1500; ++step) {
    model.Step();
    if (HasFatalFailure()) FAIL() << "at step " << step;
  }
  model.CompareAll();
  EXPECT_EQ(model.refused(), 0);
  model.DropAll();
}

TEST_P(TierConformanceTest, AgreesWithAMapWhenTheBudgetIsTight) {
  TierModel model(GetParam(), 40000, 2);
  for (int step = 0; step < 1500; ++step) {
    model.Step();
    if (HasFatalFailure()) FAIL() << "at step " << step;
  }
  model.CompareAll();
  if (GetParam().extra != nullptr) {
    EXPECT_GT(model.refused(), 100);
  }
  model.DropAll();
}

TEST_P(TierConformanceTest, RoundTripsLargeBlocks) {
  const auto tier = GetParam().make(kAmple);
  // Odd addresses, sizes and offsets; several pieces.
  const Bytes bytes = PatternBytes((3 << 20) + 12345, 3);
  const auto odd = std::span(bytes).subspan(1);
  TESSERA_ASSERT_OK(tier->Put("large", odd, {}));
  Bytes got(odd.size() + 3);
  TESSERA_ASSERT_OK(tier->Get("large", std::span(got).subspan(3)));
  EXPECT_TRUE(std::equal(odd.begin(), odd.end(), got.begin() + 3));
  Bytes part((1 << 20) + 77);
  TESSERA_ASSERT_OK(tier->GetRange("large", (1 << 20) - 5, part));
  EXPECT_TRUE(
      std::equal(part.begin(), part.end(), odd.begin() + (1 << 20) - 5));
}

TEST_P(TierConformanceTest, RejectsBadKeysAndInfos) {
  const auto tier = GetParam().make(kAmple);
  EXPECT_THAT(tier->Put("", {}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(std::string(tier->name())),
                             HasSubstr("a key has 1 to 256"))));
  EXPECT_THAT(
      tier->Put(std::string(kMaxKeyBytes + 1, 'x'), {}, {}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has 257 bytes")));
  BlockInfo wrong;
  wrong.purpose = static_cast<Purpose>(77);
  EXPECT_THAT(tier->Put("k", {}, wrong),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("77")));
  wrong = {};
  wrong.dtype = static_cast<DType>(88);
  EXPECT_THAT(tier->Put("k", {}, wrong),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("88")));
  EXPECT_TRUE(tier->Keys().empty());
}

TEST_P(TierConformanceTest, NamesMissingBlock) {
  const auto tier = GetParam().make(kAmple);
  const auto missing =
      StatusIs(absl::StatusCode::kNotFound,
               AllOf(HasSubstr("\"layer.7\""), HasSubstr("holds no block")));
  EXPECT_THAT(tier->Get("layer.7", {}), missing);
  EXPECT_THAT(tier->GetRange("layer.7", 0, {}), missing);
  EXPECT_THAT(tier->Drop("layer.7"), missing);
  EXPECT_THAT(tier->Stat("layer.7"), missing);
  EXPECT_THAT(tier->Prefetch("layer.7"), missing);
  EXPECT_FALSE(tier->Contains("layer.7"));
}

TEST_P(TierConformanceTest, RejectsRangesOutsideTheBlock) {
  const auto tier = GetParam().make(kAmple);
  TESSERA_ASSERT_OK(tier->Put("k", Bytes(10), {}));
  Bytes five(5);
  for (int64_t offset : {int64_t{-1}, int64_t{6}, int64_t{11}, INT64_MAX}) {
    EXPECT_THAT(tier->GetRange("k", offset, five),
                StatusIs(absl::StatusCode::kOutOfRange,
                         HasSubstr("has 10 bytes; 5 bytes from offset")));
  }
  EXPECT_THAT(tier->Get("k", five),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("has 10 bytes, the buffer for it 5")));
}

TEST_P(TierConformanceTest, ReportsBlockLargerThanBudget) {
  if (GetParam().extra == nullptr) GTEST_SKIP() << "the stack has more room";
  const auto tier = GetParam().make(5000);
  TESSERA_ASSERT_OK(tier->Put("small", PatternBytes(100, 1), {}));
  EXPECT_THAT(tier->Put("huge", Bytes(5001), {}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("\"huge\""), HasSubstr("5001 bytes"),
                             HasSubstr("more than the whole budget of 5000"))));
  EXPECT_THAT(tier->Put("small2", Bytes(4901), {}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("100 of the budget of 5000")));
  Bytes got(100);
  TESSERA_EXPECT_OK(tier->Get("small", got));
  EXPECT_EQ(got, PatternBytes(100, 1));
  EXPECT_EQ(tier->Keys(), std::vector<std::string>{"small"});
  EXPECT_EQ(tier->usage().front().usage.peak, 100);
}

TEST_P(TierConformanceTest, MapsBlocksOrReturnsUnimplemented) {
  const auto tier = GetParam().make(kAmple);
  TESSERA_ASSERT_OK(tier->Put("k", PatternBytes(1000, 1), {}));
  absl::StatusOr<BlockView> view = tier->Map("k");
  if (!view.ok()) {
    EXPECT_THAT(
        view, StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("use Get")));
    return;
  }
  ASSERT_EQ(view->bytes.size(), 1000u);
  view->bytes[10] = std::byte{0xab};
  Bytes got(1000);
  TESSERA_ASSERT_OK(tier->Get("k", got));
  EXPECT_TRUE(std::equal(got.begin(), got.end(), view->bytes.begin()));
  EXPECT_THAT(tier->Map("none"), StatusIs(absl::StatusCode::kNotFound));
  TESSERA_ASSERT_OK(tier->Drop("k"));
  EXPECT_EQ(view->bytes[10], std::byte{0xab});  // The view keeps its bytes.
  EXPECT_GE(tier->usage().front().usage.current, 1000);
  view = absl::CancelledError();
  EXPECT_EQ(tier->usage().front().usage.current, 0);
}

// Writers fill whole blocks with one byte value each; readers must never see
// two values.
TEST_P(TierConformanceTest, ReadersNeverSeeMixedVersions) {
  const auto tier = GetParam().make(kAmple);
  TESSERA_ASSERT_OK(tier->Put("shared", Bytes(30000), {}));
  std::atomic<int> failures = 0;
  const auto work = [&](int t) {
    Bytes mine(5000 + 100 * t, std::byte(t)), got(30000);
    const std::string own = "own." + std::to_string(t);
    for (int i = 0; i < 40; ++i) {
      const Bytes whole(30000, std::byte(t * 50 + i));
      failures += !tier->Put("shared", whole, {}).ok();
      failures += !tier->Get("shared", got).ok();
      failures += std::count(got.begin(), got.end(), got[0]) != 30000;
      failures += !tier->Put(own, mine, {}).ok();
      tier->Prefetch("shared").IgnoreError();
      Bytes back(mine.size());
      failures += !tier->Get(own, back).ok() || back != mine;
      failures += !tier->Drop(own).ok();
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  TESSERA_EXPECT_OK(tier->Drop("shared"));
  for (const TierUsage& usage : tier->usage()) {
    EXPECT_EQ(usage.usage.current, 0);
  }
}

// A key is put and dropped repeatedly: a reader finds the whole block or none.
TEST_P(TierConformanceTest, DropsAndPutsOfOneKeyMayRace) {
  const auto tier = GetParam().make(kAmple);
  std::atomic<int> failures = 0;
  const auto work = [&](int t) {
    for (int i = 0; i < 100; ++i) {
      const absl::Status status =
          (i + t) % 2 == 0
              ? tier->Put("k", Bytes(100 + i % 3, std::byte(t)), {})
              : tier->Drop("k");
      failures += !status.ok() && !absl::IsNotFound(status);
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  tier->Drop("k").IgnoreError();
  EXPECT_TRUE(tier->Keys().empty());
  for (const TierUsage& usage : tier->usage()) {
    EXPECT_EQ(usage.usage.current, 0);
  }
}

}  // namespace
}  // namespace tessera::offload
