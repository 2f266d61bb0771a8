#include "collectives/engine/peer_report.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

PeerReport Peer(PeerState state, uint64_t sequence, PhaseWord phase) {
  return {Rank(3), state, "a", 71, sequence, phase};
}

TEST(PeerReportTest, DescribesPeerState) {
  const PhaseWord idle;
  const PhaseWord receiving(Phase::kReceiving, 2);
  const PhaseWord entering(Phase::kEntering, PhaseWord::kNoPeer);
  EXPECT_EQ(DescribePeer(Peer(PeerState::kDead, 12, idle), 13),
            "rank 3 (host a, pid 71) is dead; its last operation was #12");
  EXPECT_EQ(DescribePeer(Peer(PeerState::kDeparted, 12, receiving), 12),
            "rank 3 (host a, pid 71) has left the group; its last operation "
            "was #12, receiving from rank 2");
  EXPECT_EQ(DescribePeer(Peer(PeerState::kAlive, 11, idle), 12),
            "rank 3 (host a, pid 71) has not entered operation #12; its last "
            "was #11");
  EXPECT_EQ(DescribePeer(Peer(PeerState::kAlive, 12, entering), 12),
            "rank 3 (host a, pid 71) is in operation #12, entering");
  EXPECT_EQ(DescribePeer(PeerReport{.rank = Rank(1)}, 12),
            "rank 1 (the engine does not know its state)");
}

TEST(PeerReportTest, ErrorNamesOperationPhaseAndEveryMissingRank) {
  Scratch scratch;
  Signature signature;
  signature.sequence = 12;
  signature.kind = OpKind::kBarrier;
  OperationContext context(signature, 0, scratch);
  context.Enter(Phase::kEntering);
  const std::vector<PeerReport> late = {
      Peer(PeerState::kAlive, 11, PhaseWord()),
      {Rank(4), PeerState::kAlive, "b", 8, 10, PhaseWord()}};
  EXPECT_THAT(
      MissingPeersError(context, late),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr("barrier #12"), HasSubstr("while entering"),
                     HasSubstr("rank 3 (host a, pid 71)"),
                     HasSubstr("rank 4 (host b, pid 8)"))));
  const std::vector<PeerReport> dead = {
      Peer(PeerState::kDead, 12, PhaseWord(Phase::kReducing, 1))};
  EXPECT_THAT(MissingPeersError(context, dead),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("is dead; its last operation was #12, "
                                 "reducing, waiting for rank 1")));
}

TEST(PeerReportTest, ErrorStaysReadableWithThousandsMissing) {
  Scratch scratch;
  OperationContext context(Signature(), 0, scratch);
  std::vector<PeerReport> all(5000, Peer(PeerState::kAlive, 0, PhaseWord()));
  const absl::Status error = MissingPeersError(context, all);
  EXPECT_THAT(std::string(error.message()), HasSubstr("and 4984 more"));
  EXPECT_LT(error.message().size(), 4000u);
}

TEST(OperationContextTest, PublishesPhasesToEngine) {
  Scratch scratch;
  OperationContext context(Signature(), 0, scratch);
  context.Enter(Phase::kSending, Rank(5));
  EXPECT_EQ(context.phase().phase(), Phase::kSending);
  EXPECT_EQ(context.phase().peer(), 5u);
  std::atomic<uint32_t> word = 0;
  context.PublishTo(&word);
  context.Enter(Phase::kLeaving);
  EXPECT_EQ(PhaseWord(word.load()).phase(), Phase::kLeaving);
  EXPECT_EQ(PhaseWord(word.load()).peer(), PhaseWord::kNoPeer);
  EXPECT_TRUE(context.Expired());
}

}  // namespace
}  // namespace tessera::collectives
