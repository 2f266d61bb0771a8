#include "collectives/algorithms/algorithm_chooser.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SupportsTest, EveryKindHasAnAlgorithm) {
  for (OpKind kind : kCollectiveKinds) {
    EXPECT_FALSE(AlgorithmsFor(kind, false).empty()) << kind;
  }
  for (OpKind kind :
       {OpKind::kReduceScatter, OpKind::kAllGather, OpKind::kAllToAll}) {
    EXPECT_FALSE(AlgorithmsFor(kind, true).empty()) << kind;
  }
}

TEST(SupportsTest, UnevenFormsImplyEvenForms) {
  for (Algorithm algorithm : kAllAlgorithms) {
    for (OpKind kind : kCollectiveKinds) {
      if (!Supports(algorithm, kind, true)) continue;
      EXPECT_TRUE(Supports(algorithm, kind, false));
      EXPECT_TRUE(kind == OpKind::kReduceScatter ||
                  kind == OpKind::kAllGather || kind == OpKind::kAllToAll);
    }
  }
}

TEST(SupportsTest, ListsAreInOrder) {
  EXPECT_THAT(AlgorithmsFor(OpKind::kAllToAll, false),
              ElementsAre(Algorithm::kBruck, Algorithm::kPairwise));
  EXPECT_THAT(AlgorithmsFor(OpKind::kAllToAll, true),
              ElementsAre(Algorithm::kPairwise));
  EXPECT_THAT(AlgorithmsFor(OpKind::kBarrier, false),
              ElementsAre(Algorithm::kTree, Algorithm::kRecursiveDoubling,
                          Algorithm::kHierarchical));
}

TEST(SupportsTest, ExcludesEngineAndPointToPoint) {
  for (OpKind kind : kCollectiveKinds) {
    EXPECT_FALSE(Supports(Algorithm::kEngine, kind, false));
  }
  for (OpKind kind : {OpKind::kSend, OpKind::kReceive, OpKind::kSendReceive}) {
    EXPECT_THAT(AlgorithmsFor(kind, false), IsEmpty());
  }
}

using ::testing::HasSubstr;
using topology::CommunicationStrategy;

constexpr CommunicationStrategy kAllStrategies[] = {
    CommunicationStrategy::kAllReduce, CommunicationStrategy::kHierarchical,
    CommunicationStrategy::kRing, CommunicationStrategy::kTree,
    CommunicationStrategy::kAdaptive};

TEST(StrategyChooserTest, ChoosesRunnableAlgorithms) {
  for (CommunicationStrategy strategy : kAllStrategies) {
    const StrategyChooser chooser(strategy);
    for (OpKind kind : kCollectiveKinds) {
      for (int64_t bytes : {0, 8, 1 << 20}) {
        for (bool uneven : {false, true}) {
          for (bool own : {false, true}) {
            const bool divided = kind == OpKind::kReduceScatter ||
                                 kind == OpKind::kAllGather ||
                                 kind == OpKind::kAllToAll;
            if (uneven && !divided) continue;
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

TEST(StrategyChooserTest, FollowsStrategyWhereSupported) {
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

TEST(StrategyChooserTest, ExplainsUnsupportedStrategy) {
  const StrategyChooser ring(CommunicationStrategy::kRing);
  EXPECT_THAT(ring.Explain({.kind = OpKind::kAllToAll, .ranks = 4}),
              HasSubstr("strategy ring does not support all_to_all: pairwise"));
}

TEST(StrategyChooserTest, ChoosesEngineWithoutTransport) {
  const StrategyChooser ring(CommunicationStrategy::kRing);
  EXPECT_EQ(ring.Choose({.kind = OpKind::kAllReduce,
                         .engine_implements = true,
                         .has_transport = false}),
            Algorithm::kEngine);
}

}  // namespace

}  // namespace tessera::collectives
