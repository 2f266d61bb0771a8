#include "collectives/algorithms/strategy_chooser.h"

#include "collectives/algorithms/supports.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::HasSubstr;
using topology::CommunicationStrategy;

constexpr CommunicationStrategy kAllStrategies[] = {
    CommunicationStrategy::kAllReduce, CommunicationStrategy::kHierarchical,
    CommunicationStrategy::kRing, CommunicationStrategy::kTree,
    CommunicationStrategy::kAdaptive};

TEST(StrategyChooserTest, EveryChoiceCanBeCarriedOut) {
  for (CommunicationStrategy strategy : kAllStrategies) {
    const StrategyChooser chooser(strategy);
    for (OpKind kind : kCollectiveKinds) {
      for (int64_t bytes : {0, 8, 1 << 20}) {
        for (bool uneven : {false, true}) {
          for (bool own : {false, true}) {
            const bool parted = kind == OpKind::kReduceScatter ||
                                kind == OpKind::kAllGather ||
                                kind == OpKind::kAllToAll;
            if (uneven && !parted) continue;
            const ChoiceQuestion question{.kind = kind,
                                          .bytes = bytes,
                                          .ranks = 5,
                                          .uneven = uneven,
                                          .engine_implements = own};
            const Algorithm chosen = chooser.Choose(question);
            EXPECT_TRUE(chosen == Algorithm::kEngine
                            ? own
                            : Supports(chosen, kind, uneven))
                << kind << " " << chosen;
            EXPECT_FALSE(chooser.Explain(question).empty());
          }
        }
      }
    }
  }
}

TEST(StrategyChooserTest, AStrategyHoldsWhereItHasAForm) {
  const ChoiceQuestion question{.kind = OpKind::kAllReduce,
                                .bytes = 100,
                                .ranks = 4,
                                .engine_implements = true};
  const auto choose = [&](CommunicationStrategy strategy) {
    return StrategyChooser(strategy).Choose(question);
  };
  EXPECT_EQ(choose(CommunicationStrategy::kAllReduce), Algorithm::kEngine);
  EXPECT_EQ(choose(CommunicationStrategy::kRing), Algorithm::kRing);
  EXPECT_EQ(choose(CommunicationStrategy::kTree), Algorithm::kTree);
  EXPECT_EQ(choose(CommunicationStrategy::kHierarchical),
            Algorithm::kHierarchical);
}

TEST(StrategyChooserTest, SaysWhyAStrategyDoesNotHold) {
  const StrategyChooser ring(CommunicationStrategy::kRing);
  EXPECT_THAT(ring.Explain({.kind = OpKind::kAllToAll, .ranks = 4}),
              HasSubstr("strategy ring has no all_to_all: pairwise"));
}

TEST(StrategyChooserTest, WithoutATransportOnlyTheEngineIsLeft) {
  const StrategyChooser ring(CommunicationStrategy::kRing);
  EXPECT_EQ(ring.Choose({.kind = OpKind::kAllReduce,
                         .engine_implements = true,
                         .has_transport = false}),
            Algorithm::kEngine);
}

}  // namespace
}  // namespace tessera::collectives
