#include "collectives/algorithms/rank_group.h"

#include "base/status_matchers.h"
#include "collectives/testing/thread_transport.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

using ::testing::Each;
using ::testing::StartsWith;

constexpr int64_t kSecond = 1'000'000'000;

TEST(RankGroupTest, CountsFromAnyRank) {
  ThreadWorld world(5);
  Scratch scratch;
  OperationContext context(Signature(), 0, scratch);
  const RankGroup group(world.transport(1), context, "test");
  EXPECT_EQ(group.size(), 5);
  EXPECT_EQ(group.rank(), 1);
  const RankGroup rooted = group.From(3);
  EXPECT_EQ(rooted.rank(), 3);
  EXPECT_EQ(rooted.RankOf(0), Rank(3));
  EXPECT_EQ(rooted.RankOf(rooted.rank()), Rank(1));
  const RankGroup twice = rooted.From(4);
  EXPECT_EQ(twice.RankOf(0), Rank(2));
  EXPECT_EQ(twice.RankOf(twice.rank()), Rank(1));
}

TEST(RankGroupTest, SelectsMembers) {
  ThreadWorld world(5);
  Scratch scratch;
  OperationContext context(Signature(), 0, scratch);
  const RankGroup group(world.transport(1), context, "test");
  const std::vector<int64_t> members = {4, 1, 2};
  TESSERA_ASSERT_OK_AND_ASSIGN(const RankGroup some,
                               group.Select(members, 1, "some"));
  EXPECT_EQ(some.size(), 3);
  EXPECT_EQ(some.RankOf(0), Rank(4));
  EXPECT_EQ(some.From(1).RankOf(2), Rank(4));
  EXPECT_EQ(some.From(1).rank(), 0);
}

TEST(RankGroupTest, ErrorsNameAlgorithmAndStep) {
  ThreadWorld world(2);
  Scratch scratch;
  OperationContext context(Signature(), MonotonicNanos() + kSecond / 100,
                           scratch);
  RankGroup group(world.transport(0), context, "ring");
  group.Step(2, 6);
  EXPECT_THAT(group.ReceiveNow(1, {}),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       StartsWith("ring, step 2 of 6: barrier #0")));
  EXPECT_EQ(context.phase().phase(), Phase::kReceiving);
  EXPECT_EQ(context.phase().peer(), 1u);
  const std::vector<int64_t> members = {0, 1};
  TESSERA_ASSERT_OK_AND_ASSIGN(RankGroup some,
                               group.Select(members, 0, "within a group"));
  world.Abort(absl::AbortedError("enough"));
  EXPECT_THAT(some.SendNow(1, {}),
              StatusIs(absl::StatusCode::kAborted,
                       "ring, within a group, step 2 of 6: enough"));
}

TEST(RankGroupTest, FinishWaitsForPendingRequestsAndClearsThem) {
  ThreadWorld world(2, {.mode = ThreadMode::kLazy});
  EXPECT_THAT(world.Run([](Transport& transport) -> absl::Status {
    Scratch scratch;
    OperationContext context(Signature(), MonotonicNanos() + 10 * kSecond,
                             scratch);
    RankGroup group(transport, context, "test");
    const int64_t peer = 1 - group.rank();
    std::byte in{0};
    const std::byte out{7};
    Request requests[4];
    TESSERA_ASSIGN_OR_RETURN(requests[1],
                             group.Receive(peer, std::span(&in, 1)));
    TESSERA_ASSIGN_OR_RETURN(requests[3], group.Send(peer, std::span(&out, 1)));
    TESSERA_RETURN_IF_ERROR(group.Finish(requests));
    for (const Request& request : requests) EXPECT_EQ(request.number, 0u);
    EXPECT_EQ(in, out);
    return group.Finish(requests);
  }),
              Each(IsOk()));
  EXPECT_THAT(world.CheckIdle(0), IsOk());
}

TEST(RankGroupTest, ScratchBelongsToOperation) {
  ThreadWorld world(1);
  Scratch scratch;
  OperationContext context(Signature(), 0, scratch);
  RankGroup group(world.transport(0), context, "test");
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::span<Request> requests,
                               group.ScratchOf<Request>(3));
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[2].number, 0u);
  EXPECT_THAT(group.Scratch(-1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_GT(scratch.held_bytes(), 0);
}

}  // namespace

}  // namespace tessera::collectives
