#include "zero3/parameters/use/use_order.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::zero3 {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ParameterId kA(0);
constexpr ParameterId kB(1);
constexpr ParameterId kC(2);

TEST(UseOrderTest, ForwardBackwardGoesThroughTheGroupsAndBack) {
  const ModelParameters model = *ModelParameters::Builder()
                                     .Add({.name = "a", .group = 4})
                                     .Add({.name = "b", .group = 1})
                                     .Add({.name = "c", .group = 4})
                                     .Build();
  const UseOrder order = UseOrder::ForwardBackward(model);
  ASSERT_EQ(order.windows(), 4u);
  EXPECT_THAT(order.window(0), ElementsAre(kB));
  EXPECT_THAT(order.window(1), ElementsAre(kA, kC));
  EXPECT_THAT(order.window(2), ElementsAre(kA, kC));
  EXPECT_THAT(order.window(3), ElementsAre(kB));
}

TEST(UseOrderTest, AnEmptyModelIsUsedInNoWindow) {
  EXPECT_EQ(UseOrder::ForwardBackward(ModelParameters()), UseOrder());
}

TEST(UseOrderTest, OneByOneGivesEachUseItsWindow) {
  const ParameterId uses[] = {kB, kA, kB};
  const UseOrder order = UseOrder::OneByOne(uses);
  ASSERT_EQ(order.windows(), 3u);
  EXPECT_THAT(order.window(2), ElementsAre(kB));
  EXPECT_THAT(order.uses(), ElementsAre(kB, kA, kB));
}

TEST(UseOrderTest, AnIdCountsOnceInAWindowAndWindowsMayBeEmpty) {
  const ParameterId twice[] = {kC, kA, kC, kA};
  UseOrder order;
  order.Use(twice);
  order.Use({});
  order.Use({&twice[0], 1});
  ASSERT_EQ(order.windows(), 3u);
  EXPECT_THAT(order.window(0), ElementsAre(kC, kA));
  EXPECT_THAT(order.window(1), IsEmpty());
  EXPECT_THAT(order.window(2), ElementsAre(kC));
}

}  // namespace
}  // namespace tessera::zero3
