#include <chrono>
#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "collectives/testing/engine_checks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int64_t kSizes[] = {0, 1, 3, 40, 4000, 4096, 5000, 300'001};
constexpr Lane kLanes[] = {Lane::kCollective, Lane::kPointToPoint};

std::vector<std::byte> Pattern(int64_t bytes, int64_t from, int64_t to,
                               Lane lane, int64_t number) {
  std::vector<std::byte> pattern(static_cast<size_t>(bytes));
  uint32_t state = static_cast<uint32_t>(from * 7919 + to * 131 + number * 17 +
                                         static_cast<int64_t>(lane) + 1);
  for (std::byte& byte : pattern) {
    state = state * 1664525 + 1013904223;
    byte = std::byte(state >> 24);
  }
  return pattern;
}

// Messages of one kind, all under way at once.
class Round {
 public:
  Round(Engine& engine, int64_t bytes, int messages)
      : engine_(engine), bytes_(bytes), messages_(messages) {}

  void Start(uint64_t& number) {
    for (int m = 0; m < messages_; ++m) {
      ++number;
      for (const Lane lane : kLanes) {
        for (int64_t r = 0; r < engine_.size(); ++r) {
          StartPair(Rank(r), lane, number);
        }
      }
    }
  }

  // Sends are waited for first: receives go on by themselves meanwhile.
  void Finish() {
    Scratch scratch;
    OperationContext context(Caller::MessageSignature(1, bytes_),
                             Caller(engine_).Deadline(), scratch);
    context.Enter(Phase::kSending);
    ASSERT_THAT(engine_.transport()->Wait(sends_, context), IsOk());
    for (const Request& request : receives_) {
      while (true) {
        TESSERA_ASSERT_OK_AND_ASSIGN(const bool done,
                                     engine_.transport()->Test(request));
        if (done) break;
        ASSERT_FALSE(context.Expired());
        std::this_thread::yield();
      }
    }
    EXPECT_EQ(in_, expected_) << bytes_ << " bytes";
  }

 private:
  void StartPair(Rank peer, Lane lane, uint64_t number) {
    const Signature signature = Caller::MessageSignature(number, bytes_);
    const int64_t me = engine_.rank().value();
    const auto n = static_cast<int64_t>(number);
    out_.push_back(Pattern(bytes_, me, peer.value(), lane, n));
    expected_.push_back(Pattern(bytes_, peer.value(), me, lane, n));
    in_.emplace_back(static_cast<size_t>(bytes_));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const Request send,
        engine_.transport()->StartSend(peer, lane, signature, out_.back()));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const Request receive,
        engine_.transport()->StartReceive(peer, lane, signature, in_.back()));
    sends_.push_back(send);
    receives_.push_back(receive);
  }

  Engine& engine_;
  const int64_t bytes_;
  const int messages_;
  // Inner vectors do not move their memory when the outer ones grow.
  std::vector<std::vector<std::byte>> out_, in_, expected_;
  std::vector<Request> sends_, receives_;
};

}  // namespace

void CheckMessages(Engine& engine) {
  uint64_t number = 0;
  for (const int64_t bytes : kSizes) {
    for (const int messages : {1, 5}) {
      Round round(engine, bytes, messages);
      round.Start(number);
      if (::testing::Test::HasFatalFailure()) return;
      round.Finish();
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  std::byte one{};
  EXPECT_THAT(engine.transport()->StartSend(Rank(engine.size()),
                                            Lane::kCollective, {}, {&one, 1}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(absl::StrCat("rank ", engine.size()))));
}

namespace {

// Memory of a call that may have failed: some libraries write to it later.
struct Values {
  std::vector<int64_t> in;
  std::vector<int64_t> out;
};

Values& KeepValues(int64_t count) {
  static std::mutex mutex;
  static std::deque<Values> kept;
  const std::lock_guard lock(mutex);
  const std::vector<int64_t> ones(static_cast<size_t>(count), 1);
  return kept.emplace_back(Values{ones, ones});
}

// One message of 8 bytes between neighbours, or a small all_reduce.
absl::Status OneExchange(Engine& engine, absl::Duration timeout,
                         bool collective, int64_t count = 1) {
  auto& [in, out] = KeepValues(count);
  if (collective) {
    return Caller(engine, timeout)
        .Run(AllReduceOf(ConstBuffer(std::span<const int64_t>(in)),
                         Buffer(std::span<int64_t>(out)), Reduction::Sum()));
  }
  Scratch scratch;
  const Signature signature = Caller::MessageSignature(1, count);
  OperationContext context(signature, Caller(engine, timeout).Deadline(),
                           scratch);
  context.Enter(Phase::kReceiving);
  const int64_t n = engine.size(), me = engine.rank().value();
  absl::StatusOr<Request> send = engine.transport()->StartSend(
      Rank((me + 1) % n), Lane::kPointToPoint, signature,
      std::as_bytes(std::span(in).first(1)));
  if (!send.ok()) return send.status();
  absl::StatusOr<Request> receive = engine.transport()->StartReceive(
      Rank((me + n - 1) % n), Lane::kPointToPoint, signature,
      std::as_writable_bytes(std::span(out).first(1)));
  if (!receive.ok()) return receive.status();
  return engine.transport()->Wait(std::vector<Request>{*receive, *send},
                                  context);
}

bool IsLast(const Engine& engine) {
  return engine.rank().value() == engine.size() - 1;
}

}  // namespace

void CheckLateRank(Engine& engine, bool collective) {
  constexpr int64_t kTimeout = 300'000'000;
  if (engine.size() == 1) return;
  if (IsLast(engine)) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(4 * kTimeout));
    return;
  }
  // Only its right neighbour waits for the last one's message.
  if (!collective && engine.rank() != Rank(0)) return;
  const int64_t begin = MonotonicNanos();
  const absl::Status status =
      OneExchange(engine, absl::Nanoseconds(kTimeout), collective);
  const int64_t took = MonotonicNanos() - begin;
  EXPECT_THAT(status.code(), AnyOf(absl::StatusCode::kDeadlineExceeded,
                                   absl::StatusCode::kUnavailable));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank"));
  if (engine.rank() == Rank(0)) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                 HasSubstr(absl::StrCat(
                                     "rank ", engine.size() - 1, " (host"))));
  }
  EXPECT_GE(took, kTimeout * 9 / 10);
  EXPECT_LT(took, 4 * kTimeout);
  engine.Abort(status);
  EXPECT_THAT(OneExchange(engine, absl::Seconds(10), collective),
              StatusIs(status.code(), HasSubstr("rank")));
}

void CheckAbort(Engine& engine, bool collective, bool reaches_peers) {
  if (engine.size() == 1) return;
  const absl::Duration timeout =
      reaches_peers ? absl::Seconds(30) : absl::Seconds(1);
  const int64_t begin = MonotonicNanos();
  if (engine.rank() == Rank(0)) {
    // It waits too, and another thread of it aborts.
    std::thread waiter([&] {
      EXPECT_THAT(OneExchange(engine, timeout, collective, 2),
                  StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    engine.Abort(absl::AbortedError("enough"));
    waiter.join();
  } else if (IsLast(engine)) {
    // Missing, so that all others wait.
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    engine.Abort(absl::AbortedError("enough"));
  } else if (collective) {
    EXPECT_THAT(
        OneExchange(engine, timeout, collective, 2).code(),
        AnyOf(absl::StatusCode::kAborted, absl::StatusCode::kUnavailable,
              absl::StatusCode::kDeadlineExceeded));
  } else {
    // Only stays until all is over.
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
  }
  EXPECT_LT(MonotonicNanos() - begin, int64_t{10'000'000'000});
}

void CheckMismatch(Engine& engine, bool collective) {
  if (engine.size() == 1) return;
  const int64_t count = engine.rank() == Rank(0) ? 2 : 1;
  const absl::Status status =
      OneExchange(engine, absl::Seconds(10), collective, count);
  const int64_t me = engine.rank().value();
  // A message that differs is seen by those who receive it.
  if (collective || me <= 1) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr("of 2"), HasSubstr("of 1"),
                                       HasSubstr("rank 0"))));
  }
  engine.Abort(status.ok() ? absl::AbortedError("done") : status);
}

}  // namespace tessera::collectives
