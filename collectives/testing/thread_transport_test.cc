#include "collectives/testing/thread_transport.h"

#include <array>
#include <thread>

#include "base/status_matchers.h"
#include "collectives/engine/operation_context.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;

Signature Call(uint64_t sequence) {
  Signature signature;
  signature.sequence = sequence;
  return signature;
}

std::span<std::byte> BytesOf(int& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

class ThreadTransportModeTest : public ::testing::TestWithParam<ThreadMode> {
 protected:
  ThreadWorldOptions options() const { return {.mode = GetParam()}; }
};

TEST_P(ThreadTransportModeTest, MessagesOfAChannelKeepTheirOrder) {
  ThreadWorld world(2, options());
  constexpr int kMessages = 50;
  const auto body = [](Transport& transport) -> absl::Status {
    Scratch scratch;
    OperationContext context(Call(1), MonotonicNanos() + 10 * kSecond, scratch);
    std::array<int, kMessages> values = {};
    std::array<Request, kMessages> requests;
    for (int i = 0; i < kMessages; ++i) {
      int& value = values[static_cast<size_t>(i)];
      absl::StatusOr<Request> request;
      if (transport.rank() == Rank(0)) {
        value = i;
        request = transport.StartSend(Rank(1), Lane::kCollective, Call(1),
                                      BytesOf(value));
      } else {
        request = transport.StartReceive(Rank(0), Lane::kCollective, Call(1),
                                         BytesOf(value));
      }
      if (!request.ok()) return request.status();
      requests[static_cast<size_t>(i)] = *request;
    }
    const absl::Status status = transport.Wait(requests, context);
    for (int i = 0; i < kMessages; ++i) {
      EXPECT_EQ(values[static_cast<size_t>(i)], i);
    }
    return status;
  };
  EXPECT_THAT(world.Run(body), Each(IsOk()));
  EXPECT_THAT(world.CheckIdle(0), IsOk());
  EXPECT_EQ(world.sent(0), (Traffic{kMessages, 4 * kMessages}));
  EXPECT_EQ(world.sent(1), Traffic());
}

TEST_P(ThreadTransportModeTest, MismatchIsAnErrorOnBothSides) {
  ThreadWorld world(2, options());
  const auto body = [](Transport& transport) -> absl::Status {
    Scratch scratch;
    const Signature mine =
        Call(1 + static_cast<uint64_t>(transport.rank().value()));
    OperationContext context(mine, MonotonicNanos() + 10 * kSecond, scratch);
    int value = 0;
    absl::StatusOr<Request> request =
        transport.rank() == Rank(0)
            ? transport.StartSend(Rank(1), Lane::kCollective, mine,
                                  BytesOf(value))
            : transport.StartReceive(Rank(0), Lane::kCollective, mine,
                                     BytesOf(value));
    if (!request.ok()) return request.status();
    const absl::Status status =
        transport.Wait(std::span(&*request, 1), context);
    if (GetParam() != ThreadMode::kEager || transport.rank() == Rank(1)) {
      return status;
    }
    // An eager sender gets the error from its next call.
    absl::Status later = status;
    while (later.ok() && !context.Expired()) {
      later = transport.Test(*request).status();
    }
    return later;
  };
  EXPECT_THAT(world.Run(body),
              Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                            AllOf(HasSubstr("#1"), HasSubstr("#2")))));
}

INSTANTIATE_TEST_SUITE_P(Modes, ThreadTransportModeTest,
                         ::testing::ValuesIn(kAllThreadModes));

TEST(ThreadTransportTest, RejectsAnotherSize) {
  ThreadWorld world(2);
  int value = 0;
  ASSERT_THAT(world.transport(0).StartSend(Rank(1), Lane::kCollective, Call(1),
                                           BytesOf(value)),
              IsOk());
  ASSERT_THAT(world.transport(1).StartReceive(Rank(0), Lane::kCollective,
                                              Call(1), BytesOf(value).first(3)),
              IsOk());
  EXPECT_THAT(
      world.transport(1).StartReceive(Rank(0), Lane::kCollective, Call(1), {}),
      StatusIs(absl::StatusCode::kInternal,
               HasSubstr("sends 4 bytes as message 1 to rank 1, which "
                         "expects 3")));
}

TEST(ThreadTransportTest, RejectsBufferInUse) {
  ThreadWorld world(2, {.mode = ThreadMode::kRendezvous});
  int value = 0;
  Transport& transport = world.transport(0);
  ASSERT_THAT(
      transport.StartSend(Rank(1), Lane::kCollective, Call(1), BytesOf(value)),
      IsOk());
  EXPECT_THAT(
      transport.StartSend(Rank(1), Lane::kCollective, Call(1), BytesOf(value)),
      IsOk());
  EXPECT_THAT(transport.StartReceive(Rank(1), Lane::kCollective, Call(1),
                                     BytesOf(value).last(1)),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("receives where a request is in flight")));
  EXPECT_THAT(world.CheckIdle(0), StatusIs(absl::StatusCode::kInternal,
                                           HasSubstr("rank 0 has 2 requests")));
  EXPECT_THAT(transport.StartSend(Rank(2), Lane::kCollective, Call(1), {}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ThreadTransportTest, LazySendsWaitForTheReceiversWait) {
  ThreadWorld world(2, {.mode = ThreadMode::kLazy});
  int out = 1;
  int in = 0;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Request send,
      world.transport(0).StartSend(Rank(1), Lane::kCollective, Call(1),
                                   BytesOf(out)));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Request receive,
      world.transport(1).StartReceive(Rank(0), Lane::kCollective, Call(1),
                                      BytesOf(in)));
  EXPECT_THAT(world.transport(0).Test(send), IsOkAndHolds(false));
  out = 2;  // Not yet read.
  EXPECT_THAT(world.transport(1).Test(receive), IsOkAndHolds(true));
  EXPECT_THAT(world.transport(0).Test(send), IsOkAndHolds(true));
  EXPECT_EQ(in, 2);
}

TEST(ThreadTransportTest, WaitEndsAtTheDeadlineAndOnAbort) {
  ThreadWorld world(2);
  int value = 0;
  Scratch scratch;
  Transport& transport = world.transport(0);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Request request, transport.StartReceive(Rank(1), Lane::kCollective,
                                                    Call(1), BytesOf(value)));
  OperationContext soon(Call(1), MonotonicNanos() + kSecond / 50, scratch);
  EXPECT_THAT(
      transport.Wait(std::span(&request, 1), soon),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1")));
  OperationContext late(Call(1), MonotonicNanos() + 60 * kSecond, scratch);
  const int64_t begin = MonotonicNanos();
  std::thread other([&] { world.Abort(absl::AbortedError("enough")); });
  EXPECT_THAT(transport.Wait(std::span(&request, 1), late),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
  other.join();
  EXPECT_LT(MonotonicNanos() - begin, 10 * kSecond);
}

TEST(ThreadTransportTest, ModelsTime) {
  ThreadWorld world(2, {.alpha = 1, .beta = 0.5});
  const auto body = [](Transport& transport) -> absl::Status {
    Scratch scratch;
    OperationContext context(Call(1), MonotonicNanos() + 10 * kSecond, scratch);
    std::array<int, 2> values = {};
    std::array<Request, 2> requests;
    for (size_t i = 0; i < 2; ++i) {
      absl::StatusOr<Request> request =
          transport.rank() == Rank(0)
              ? transport.StartSend(Rank(1), Lane::kCollective, Call(1),
                                    BytesOf(values[i]))
              : transport.StartReceive(Rank(0), Lane::kCollective, Call(1),
                                       BytesOf(values[i]));
      if (!request.ok()) return request.status();
      requests[i] = *request;
    }
    return transport.Wait(requests, context);
  };
  EXPECT_THAT(world.Run(body), Each(IsOk()));
  EXPECT_DOUBLE_EQ(world.clock(0), 6);
  EXPECT_DOUBLE_EQ(world.clock(1), 6);
  world.ResetCounts();
  EXPECT_DOUBLE_EQ(world.clock(1), 0);
  EXPECT_EQ(world.sent(0), Traffic());
}

}  // namespace
}  // namespace tessera::collectives
