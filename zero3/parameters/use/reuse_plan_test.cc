#include "zero3/parameters/use/reuse_plan.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::zero3 {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

std::vector<ParameterId> Ids(const std::vector<int64_t>& values) {
  std::vector<ParameterId> ids;
  for (const int64_t value : values) ids.push_back(ParameterId(value));
  return ids;
}

UseOrder OrderOf(const std::vector<std::vector<int64_t>>& windows) {
  UseOrder order;
  for (const auto& window : windows) order.Use(Ids(window));
  return order;
}

TEST(NextUsesTest, NameTheNextWindowOrNone) {
  EXPECT_THAT(NextUses(OrderOf({{0, 1}, {2}, {}, {1, 0}, {0}})),
              ElementsAre(3, 3, kNoNextUse, kNoNextUse, 4, kNoNextUse));
  EXPECT_THAT(NextUses(UseOrder()), IsEmpty());
}

TEST(PlanReuseTest, WithoutLimitsEverythingIsGatheredOnce) {
  const UseOrder order = OrderOf({{0}, {1}, {2}, {2}, {1}, {0}});
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const ReusePlan plan,
      PlanReuse(order, std::vector<int64_t>{5, 7, 11}, {}));
  EXPECT_EQ(plan.gathered, 23);
  EXPECT_EQ(plan.peak_live, 23);
  EXPECT_THAT(plan.windows[3].gather, IsEmpty());
  EXPECT_THAT(plan.windows[3].release, ElementsAre(ParameterId(2)));
  EXPECT_THAT(plan.windows[5].release, ElementsAre(ParameterId(0)));
}

TEST(PlanReuseTest, AParameterOutlivesADistanceUpToTheMost) {
  const UseOrder order = OrderOf({{0}, {1}, {1}, {0}});
  const std::vector<int64_t> sizes = {1, 10};
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const ReusePlan kept,
      PlanReuse(order, sizes, {.max_reuse_distance = 20}));
  EXPECT_EQ(kept.gathered, 11);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const ReusePlan released,
      PlanReuse(order, sizes, {.max_reuse_distance = 19}));
  EXPECT_EQ(released.gathered, 12);
  EXPECT_EQ(released.peak_live, 10);
  EXPECT_THAT(released.windows[0].release, ElementsAre(ParameterId(0)));
}

TEST(PlanReuseTest, AWindowAboveTheLimitIsGatheredAlone) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const ReusePlan plan,
      PlanReuse(OrderOf({{0}, {1, 2}, {0}}), std::vector<int64_t>{1, 4, 5},
                {.max_live = 3}));
  EXPECT_EQ(plan.peak_live, 9);
  EXPECT_THAT(plan.windows[0].release, ElementsAre(ParameterId(0)));
}

TEST(PlanReuseTest, ResidentParametersAreNeverGathered) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const ReusePlan plan,
      PlanReuse(OrderOf({{0, 1}, {0}}), std::vector<int64_t>{0, 3}, {}));
  EXPECT_THAT(plan.windows[0].gather, ElementsAre(ParameterId(1)));
  EXPECT_THAT(plan.windows[1].release, IsEmpty());
}

TEST(PlanReuseTest, WrongArgumentsAreRefused) {
  const std::vector<int64_t> sizes = {1, -2, kMax};
  const auto refused = [&](const UseOrder& order, const ReuseOptions& options) {
    return std::string(PlanReuse(order, sizes, options).status().message());
  };
  EXPECT_THAT(refused(OrderOf({{0}}), {.max_live = -1}),
              HasSubstr("max_live is -1"));
  EXPECT_THAT(refused(OrderOf({{0}}), {.max_reuse_distance = -5}),
              HasSubstr("max_reuse_distance is -5"));
  EXPECT_THAT(refused(OrderOf({{3}}), {}), HasSubstr("parameter 3, which has"));
  EXPECT_THAT(refused(OrderOf({{-1}}), {}), HasSubstr("parameter -1, which"));
  EXPECT_THAT(refused(OrderOf({{1}}), {}),
              HasSubstr("size of parameter 1 is -2"));
  EXPECT_THAT(refused(OrderOf({{0, 2}}), {}), HasSubstr("exceed 2^63-1"));
}

// The fewest gathers of any plan, by trying every set that could be live.
int64_t FewestGathers(const std::vector<unsigned>& windows, int limit) {
  std::map<unsigned, int64_t> costs = {{0u, 0}};
  for (const unsigned window : windows) {
    std::map<unsigned, int64_t> next;
    for (const auto& [live, cost] : costs) {
      // Every part of what is live may be kept.
      for (unsigned keep = live;; keep = (keep - 1) & live) {
        const unsigned now = keep | window;
        const int most = std::max(limit, std::popcount(window));
        if (std::popcount(now) <= most) {
          const int64_t total = cost + std::popcount(window & ~keep);
          const auto [entry, is_new] = next.emplace(now, total);
          entry->second = std::min(entry->second, total);
        }
        if (keep == 0) break;
      }
    }
    costs = std::move(next);
  }
  int64_t fewest = kMax;
  for (const auto& [live, cost] : costs) fewest = std::min(fewest, cost);
  return fewest;
}

int64_t GathersOfPlan(const std::vector<unsigned>& windows, int limit) {
  UseOrder order;
  for (const unsigned window : windows) {
    std::vector<ParameterId> ids;
    for (int64_t id = 0; id < 6; ++id) {
      if ((window >> id & 1u) != 0) ids.push_back(ParameterId(id));
    }
    order.Use(ids);
  }
  const std::vector<int64_t> sizes(6, 1);
  return PlanReuse(order, sizes, {.max_live = limit})->gathered;
}

// All orders of up to 7 single uses of 3 parameters.
TEST(PlanReuseTest, GathersTheFewestOnEverySmallOrder) {
  std::vector<std::vector<unsigned>> orders = {{}};
  for (size_t i = 0; i < orders.size(); ++i) {
    for (int limit = 0; limit <= 3; ++limit) {
      ASSERT_EQ(GathersOfPlan(orders[i], limit),
                FewestGathers(orders[i], limit));
    }
    if (orders[i].size() == 7) continue;
    for (unsigned id = 0; id < 3; ++id) {
      std::vector<unsigned> longer = orders[i];
      longer.push_back(1u << id);
      orders.push_back(std::move(longer));
    }
  }
}

TEST(PlanReuseTest, GathersTheFewestOnRandomWindows) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<unsigned> windows(random() % 12);
    for (unsigned& window : windows) {
      window = (1u << random() % 6) | (1u << random() % 6);
      if (random() % 8 == 0) window = 0;
    }
    const int limit = static_cast<int>(random() % 7);
    ASSERT_EQ(GathersOfPlan(windows, limit), FewestGathers(windows, limit));
  }
}

// Follows a plan and checks it against the promises of the header.
void ExpectSound(const UseOrder& order, const std::vector<int64_t>& sizes,
                 const ReuseOptions& options, const ReusePlan& plan) {
  const auto size = [&](ParameterId id) {
    return sizes[static_cast<size_t>(id.value())];
  };
  const auto weight = [&](std::span<const ParameterId> ids) {
    int64_t sum = 0;
    for (const ParameterId id : ids) sum += size(id);
    return sum;
  };
  std::set<ParameterId> live;
  int64_t gathered = 0;
  int64_t peak = 0;
  for (size_t i = 0; i < order.windows(); ++i) {
    for (const ParameterId id : plan.windows[i].gather) {
      ASSERT_TRUE(live.insert(id).second) << "gathered twice";
      gathered += size(id);
    }
    for (const ParameterId id : order.window(i)) ASSERT_TRUE(live.count(id));
    const std::vector<ParameterId> now(live.begin(), live.end());
    ASSERT_EQ(plan.windows[i].live, weight(now));
    ASSERT_LE(weight(now), std::max(options.max_live, weight(order.window(i))));
    peak = std::max(peak, weight(now));
    for (const ParameterId id : plan.windows[i].release) {
      ASSERT_EQ(live.erase(id), 1u);
    }
    for (const ParameterId id : live) {
      // What stays is used again, near enough.
      int64_t between = 0;
      size_t next = i + 1;
      const auto uses = [&](size_t window) {
        const auto ids = order.window(window);
        return std::find(ids.begin(), ids.end(), id) != ids.end();
      };
      size_t last = i;
      while (!uses(last)) --last;
      while (next < order.windows() && !uses(next)) ++next;
      ASSERT_LT(next, order.windows());
      for (size_t w = last + 1; w < next; ++w)
        between += weight(order.window(w));
      ASSERT_LE(between, options.max_reuse_distance);
    }
  }
  ASSERT_TRUE(live.empty());
  ASSERT_EQ(plan.gathered, gathered);
  ASSERT_EQ(plan.peak_live, peak);
  ASSERT_EQ(PeakLive(plan, sizes), peak);
}

TEST(PlanReuseTest, PlansOfAnySizesAreSound) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int64_t> sizes(1 + random() % 8);
    for (int64_t& size : sizes) size = 1 + static_cast<int64_t>(random() % 20);
    UseOrder order;
    for (size_t i = random() % 20; i > 0; --i) {
      std::vector<ParameterId> window;
      for (size_t j = random() % 4; j > 0; --j) {
        window.push_back(
            ParameterId(static_cast<int64_t>(random() % sizes.size())));
      }
      order.Use(window);
    }
    const ReuseOptions options = {
        .max_live = static_cast<int64_t>(random() % 100),
        .max_reuse_distance =
            random() % 3 == 0 ? kMax : static_cast<int64_t>(random() % 80)};
    TESSERA_ASSERT_OK_AND_ASSIGN(const ReusePlan plan,
                                 PlanReuse(order, sizes, options));
    ExpectSound(order, sizes, options, plan);
  }
}

TEST(PeakLiveTest, CountsInAnotherUnit) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const ReusePlan plan,
      PlanReuse(OrderOf({{0}, {1}, {0}}), std::vector<int64_t>{2, 3},
                {.max_live = 4}));
  EXPECT_EQ(plan.peak_live, 3);
  EXPECT_EQ(PeakLive(plan, std::vector<int64_t>{100, 1}), 100);
}

}  // namespace
}  // namespace tessera::zero3
