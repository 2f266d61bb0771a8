// Tests of the helpers in library_engine.h and peer_table.h.

#include "collectives/engine/library_engine.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/engine/operation_context.h"
#include "collectives/engine/peer_table.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(FailureTest, KeepsFirstError) {
  Failure failure;
  EXPECT_FALSE(failure.failed());
  EXPECT_THAT(failure.status(), IsOk());
  EXPECT_TRUE(failure.Set(absl::AbortedError("first")));
  EXPECT_FALSE(failure.Set(absl::InternalError("second")));
  EXPECT_TRUE(failure.failed());
  EXPECT_THAT(failure.status(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("first")));
}

TEST(BackoffTest, SpinsIfAllowedThenYields) {
  Backoff crowded(/*may_spin=*/false);
  EXPECT_EQ(crowded.Pause(), Backoff::Stage::kYielding);
  Backoff roomy(/*may_spin=*/true);
  EXPECT_EQ(roomy.Pause(), Backoff::Stage::kSpinning);
  for (int i = 0; i < 100'000; ++i) {
    if (roomy.Pause() == Backoff::Stage::kYielding) return;
  }
  FAIL() << "never yielded";
}

TEST(BackoffTest, SleepsAfterOneSecond) {
  Backoff backoff(/*may_spin=*/false);
  EXPECT_EQ(backoff.Pause(), Backoff::Stage::kYielding);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  EXPECT_EQ(backoff.Pause(), Backoff::Stage::kSleeping);
}

Signature CallOf(int64_t count) {
  Signature signature;
  signature.kind = OpKind::kAllReduce;
  signature.sequence = 3;
  signature.count = count;
  return signature;
}

TEST(MessageHeaderTest, DifferencesShowBothSides) {
  const MessageHeader mine{CallOf(5), 20};
  EXPECT_THAT(CheckHeader(mine, Rank(0), mine, Rank(1)), IsOk());
  EXPECT_THAT(CheckHeader(mine, Rank(0), {CallOf(6), 20}, Rank(1)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank 0 called all_reduce #3 of 5"),
                             HasSubstr("rank 1 called all_reduce #3 of 6"))));
  EXPECT_THAT(CheckHeader(mine, Rank(0), {CallOf(5), 24}, Rank(1)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("sent 24"), HasSubstr("expects 20"))));
  const std::vector<Signature> same = {CallOf(5), CallOf(5)};
  const std::vector<Signature> other = {CallOf(5), CallOf(5), CallOf(7)};
  EXPECT_THAT(CheckSignatures(same, Rank(1)), IsOk());
  EXPECT_THAT(CheckSignatures(other, Rank(1)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank 1"), HasSubstr("rank 2"))));
}

TEST(ReductionStepsTest, ScaleAndDivideInPlace) {
  std::array<float, 3> values = {1, 2, 4};
  const Buffer buffer{std::span<float>(values)};
  EXPECT_FALSE(ScalesInput(Reduction::Sum()));
  EXPECT_FALSE(ScalesInput(Reduction::ScaledSum(1.0)));
  ASSERT_TRUE(ScalesInput(Reduction::ScaledSum(0.5)));
  ScaleInto(Reduction::ScaledSum(0.5), buffer, buffer);
  EXPECT_EQ(values, (std::array<float, 3>{0.5, 1, 2}));
  Finish(Reduction::Sum(), buffer, 2);
  EXPECT_EQ(values, (std::array<float, 3>{0.5, 1, 2}));
  Finish(Reduction::Average(), buffer, 2);
  EXPECT_EQ(values, (std::array<float, 3>{0.25, 0.5, 1}));
  const std::array<float, 3> other = {1, 1, 1};
  CombineTwo(Combination::Partial(Reduction::Max(), DType::kF32), values.data(),
             other.data(), values.data(), 3);
  EXPECT_EQ(values, (std::array<float, 3>{1, 1, 1}));
}

TEST(OrdinaryMemoryTest, IsAlignedAndZeroed) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto memory, AllocateOrdinary(1000));
  const std::span<std::byte> bytes = memory->bytes();
  ASSERT_EQ(bytes.size(), 1000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % 64, 0u);
  for (std::byte byte : bytes) EXPECT_EQ(byte, std::byte{0});
  EXPECT_THAT(AllocateOrdinary(-1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("-1")));
  EXPECT_THAT(AllocateOrdinary(0), IsOk());
}

TEST(SelfMessagesTest, ReceivesMatchSendsInOrder) {
  SelfMessages messages(Rank(2));
  std::array<int, 2> out = {5, 6}, in = {};
  const auto bytes = [](int& value) {
    return std::as_writable_bytes(std::span(&value, 1));
  };
  EXPECT_THAT(messages.StartSend(CallOf(1), bytes(out[0])), IsOkAndHolds(1));
  EXPECT_THAT(messages.Test(1), IsOkAndHolds(false));
  EXPECT_THAT(messages.Wait(1, MonotonicNanos() + 1'000'000),
              IsOkAndHolds(false));
  EXPECT_THAT(messages.StartReceive(CallOf(1), bytes(in[0])), IsOkAndHolds(1));
  EXPECT_THAT(messages.Test(1), IsOkAndHolds(true));
  EXPECT_THAT(messages.StartReceive(CallOf(2), bytes(in[1])), IsOkAndHolds(2));
  std::thread sender([&] {
    EXPECT_THAT(messages.StartSend(CallOf(2), bytes(out[1])), IsOkAndHolds(2));
  });
  EXPECT_THAT(messages.Wait(2, MonotonicNanos() + 10'000'000'000),
              IsOkAndHolds(true));
  sender.join();
  EXPECT_EQ(in, out);
}

TEST(SelfMessagesTest, FailsOnMismatchAndAbort) {
  SelfMessages messages(Rank(2));
  std::byte one{}, two[2] = {};
  EXPECT_THAT(messages.StartSend(CallOf(1), {&one, 1}), IsOkAndHolds(1));
  EXPECT_THAT(messages.StartReceive(CallOf(1), two), IsOkAndHolds(1));
  EXPECT_THAT(messages.Test(1),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("sent 1"), HasSubstr("expects 2"))));
  SelfMessages aborted(Rank(0));
  std::thread other([&] { aborted.Fail(absl::AbortedError("enough")); });
  EXPECT_THAT(aborted.Wait(1, MonotonicNanos() + 10'000'000'000),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
  other.join();
  EXPECT_THAT(aborted.StartSend(CallOf(1), {&one, 1}),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
}

TEST(PeerTableTest, ParsesProcessOfEveryRank) {
  const std::string self = PeerTable::DescribeSelf();
  EXPECT_LE(self.size(), PeerTable::kMaxDescriptionBytes);
  const PeerTable table =
      PeerTable::Of(std::vector<std::string>{self, "17 b", "18 b", "garbage"});
  ASSERT_EQ(table.reports().size(), 4u);
  EXPECT_GT(table.reports()[0].pid, 0);
  EXPECT_EQ(table.reports()[1].pid, 17);
  EXPECT_EQ(table.reports()[2].host, "b");
  EXPECT_EQ(table.reports()[3].pid, 0);
  EXPECT_EQ(table.RanksOnHostOf(Rank(1)), 2);
  const std::vector<Rank> members = {Rank(2), Rank(0)};
  const PeerTable part = table.Restrict(members);
  EXPECT_EQ(part.reports()[0].pid, 18);
  EXPECT_EQ(part.reports()[0].rank, Rank(0));
}

TEST(PeerTableTest, NamesMissingRanksOrAllOthers) {
  const PeerTable table =
      PeerTable::Of(std::vector<std::string>{"1 a", "2 b", "3 c"});
  Scratch scratch;
  OperationContext context(CallOf(5), 0, scratch);
  context.Enter(Phase::kEntering);
  const std::vector<Rank> missing = {Rank(2)};
  EXPECT_THAT(table.Missing(context, Rank(0), missing),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 2 (host c, pid 3)"),
                             Not(HasSubstr("rank 1")))));
  EXPECT_THAT(table.Missing(context, Rank(0)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 1"), HasSubstr("rank 2"),
                             Not(HasSubstr("rank 0")))));
}

TEST(SubgroupIdTest, DependsOnTheGroupItsMembersAndItsNumber) {
  const std::vector<Rank> one = {Rank(0), Rank(1)};
  const std::vector<Rank> other = {Rank(1), Rank(0)};
  const std::set<std::string> ids = {
      SubgroupId("job", one, 1), SubgroupId("job", one, 2),
      SubgroupId("job", other, 1), SubgroupId("bob", one, 1),
      SubgroupId("job", {}, 1)};
  EXPECT_EQ(ids.size(), 5u);
  EXPECT_EQ(SubgroupId("job", one, 1), SubgroupId("job", one, 1));
}

TEST(TimeOfDeadlineTest, MatchesDeadline) {
  const absl::Time before = absl::Now();
  const int64_t in_an_hour = MonotonicNanos() + 3'600'000'000'000;
  const absl::Duration away = TimeOfDeadline(in_an_hour) - before;
  EXPECT_GT(away, absl::Minutes(59));
  EXPECT_LT(away, absl::Minutes(61));
}

}  // namespace

}  // namespace tessera::collectives
