#include "collectives/algorithms/supports.h"

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

TEST(SupportsTest, UnevenFormsAreOfPartedKindsAndImplyEvenOnes) {
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

TEST(SupportsTest, NeitherTheEnginesOwnNorPointToPoint) {
  for (OpKind kind : kCollectiveKinds) {
    EXPECT_FALSE(Supports(Algorithm::kEngine, kind, false));
  }
  for (OpKind kind : {OpKind::kSend, OpKind::kReceive, OpKind::kSendReceive}) {
    EXPECT_THAT(AlgorithmsFor(kind, false), IsEmpty());
  }
}

}  // namespace
}  // namespace tessera::collectives
