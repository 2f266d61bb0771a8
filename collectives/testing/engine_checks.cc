#include "collectives/testing/engine_checks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/run_algorithm.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

// Used for kinds that an engine does not implement.
Algorithm FallbackFor(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduce:
      return Algorithm::kRing;
    case OpKind::kReduce:
    case OpKind::kBroadcast:
    case OpKind::kBarrier:
      return Algorithm::kTree;
    default:
      return Algorithm::kPairwise;
  }
}

constexpr std::byte kGuard{0xa5};

struct Case {
  OpKind kind;
  DType dtype = DType::kF32;
  Reduction reduction = {};
  int64_t count = 0;
  bool uneven = false;
  bool in_place = false;
};

using Allocate = std::function<std::shared_ptr<std::byte>(int64_t bytes)>;

std::shared_ptr<std::byte> Ordinary(int64_t bytes) {
  return {new std::byte[static_cast<size_t>(bytes)],
          std::default_delete<std::byte[]>()};
}

// A buffer with a guard behind it.
class Memory {
 public:
  Memory() = default;
  Memory(int64_t bytes, const Allocate& allocate)
      : size_(static_cast<size_t>(bytes) + kGuardBytes),
        data_(allocate(static_cast<int64_t>(size_))) {
    std::memset(data_.get(), static_cast<int>(kGuard), size_);
  }
  std::byte* data() const { return data_.get(); }
  std::vector<std::byte> Copy() const {
    return {data_.get(), data_.get() + size_};
  }
  bool guard_holds() const {
    for (size_t i = size_ - std::min(size_, kGuardBytes); i < size_; ++i) {
      if (data_.get()[i] != kGuard) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuardBytes = 16;
  size_t size_ = 0;
  std::shared_ptr<std::byte> data_;
};

// One case on one rank: its blocks, buffers and expectations.
class Trial {
 public:
  Trial(Engine& engine, const Case& test_case, Rank root,
        const Allocate& allocate)
      : engine_(engine),
        allocate_(allocate),
        case_(test_case),
        root_(root),
        n_(engine.size()),
        me_(engine.rank().value()),
        size_(SizeInBytes(test_case.dtype)),
        blocks_(BlocksOf(test_case, n_)) {}

  void RunAndCheck(Caller& caller);

 private:
  static Blocks BlocksOf(const Case& c, int64_t n);
  bool is_root() const { return root_.value() == me_; }
  // The elements that rank `from` sends to rank `to` in an all_to_all.
  int64_t PairCount(int64_t from, int64_t to) const {
    if (!case_.uneven) return case_.count;
    return (from + to) % 3 == 0 ? 0 : case_.count + from - to;
  }
  std::vector<int64_t> PairCounts(bool sending) const {
    std::vector<int64_t> counts;
    for (int64_t r = 0; r < n_; ++r) {
      counts.push_back(sending ? PairCount(me_, r) : PairCount(r, me_));
    }
    return counts;
  }
  std::vector<int64_t> BlockCounts() const {
    std::vector<int64_t> counts;
    for (int64_t r = 0; r < n_ && case_.uneven; ++r) {
      counts.push_back(blocks_.count(r));
    }
    return counts;
  }

  Buffer Whole(Memory& memory, int64_t count) {
    memory = Memory(count * size_, allocate_);
    return Buffer(memory.data(), count, case_.dtype);
  }
  void Fill(Buffer buffer, int64_t rank, int64_t first) {
    for (int64_t i = 0; i < buffer.count; ++i) {
      StoreElement(case_.dtype,
                   Element(case_.dtype, case_.reduction.op, rank, first + i),
                   buffer.Bytes() + i * size_);
    }
  }
  Operation Prepare();
  Operation PrepareUnparted();
  Operation PrepareAllToAll();
  Operation PrepareGathering();
  Operation PrepareScattering();
  void ExpectElements(ConstBuffer got, int64_t rank, int64_t first);
  void ExpectReduced(ConstBuffer got, int64_t first);
  void Check(const Operation& operation);
  std::string Describe() const {
    return absl::StrCat(
        OpKindName(case_.kind), " of ", case_.count, " ",
        DTypeName(case_.dtype), " ", ReduceOpName(case_.reduction.op),
        case_.uneven ? " uneven" : "", case_.in_place ? " in place" : "",
        ", rank ", me_, " of ", n_, ", root ", root_.value());
  }

  Engine& engine_;
  const Allocate& allocate_;
  const Case case_;
  const Rank root_;
  const int64_t n_;
  const int64_t me_;
  const int64_t size_;
  const Blocks blocks_;
  Memory memory_;  // The input, and the output in place.
  Memory apart_;   // The output if not in place.
};

Blocks Trial::BlocksOf(const Case& c, int64_t n) {
  if (!c.uneven) return Blocks::Even(n, c.count);
  std::vector<int64_t> counts;
  for (int64_t r = 0; r < n; ++r) {
    counts.push_back(r % 3 == 1 ? 0 : c.count + r);
  }
  return Blocks::Of(counts);
}

Operation Trial::PrepareUnparted() {
  const Buffer input = Whole(memory_, case_.count);
  Fill(input, me_, 0);
  const Buffer output = case_.in_place ? input : Whole(apart_, case_.count);
  if (case_.kind == OpKind::kAllReduce) {
    return AllReduceOf(input, output, case_.reduction);
  }
  if (case_.kind == OpKind::kReduce) {
    return ReduceOf(input, is_root() ? output : Buffer(), case_.reduction,
                    root_);
  }
  return BroadcastOf(is_root() ? ConstBuffer(input) : ConstBuffer(), output,
                     root_);
}

Operation Trial::PrepareAllToAll() {
  const std::vector<int64_t> out = PairCounts(/*sending=*/true);
  const std::vector<int64_t> in = PairCounts(/*sending=*/false);
  const Buffer input = Whole(memory_, Blocks::Of(out).total());
  for (int64_t r = 0; r < n_; ++r) {
    Fill(input.Slice(Blocks::Of(out).offset(r), out[static_cast<size_t>(r)]),
         me_, r * 100'000);
  }
  const Buffer output =
      case_.in_place ? input : Whole(apart_, Blocks::Of(in).total());
  return case_.uneven ? AllToAllOf(input, output, out, in)
                      : AllToAllOf(input, output);
}

Operation Trial::PrepareGathering() {
  const bool whole = case_.kind == OpKind::kAllGather || is_root();
  const int64_t own = blocks_.count(me_);
  Buffer output, input;
  if (whole) output = Whole(apart_, blocks_.total());
  input = case_.in_place && whole ? output.Slice(blocks_.offset(me_), own)
                                  : Whole(memory_, own);
  Fill(input, me_, 0);
  if (case_.kind == OpKind::kGather) return GatherOf(input, output, root_);
  return AllGatherOf(input, output, BlockCounts());
}

Operation Trial::PrepareScattering() {
  const bool whole = case_.kind == OpKind::kReduceScatter || is_root();
  const int64_t own = blocks_.count(me_);
  Buffer output, input;
  if (whole) {
    input = Whole(memory_, blocks_.total());
    Fill(input, me_, 0);
  }
  output = case_.in_place && whole ? input.Slice(blocks_.offset(me_), own)
                                   : Whole(apart_, own);
  if (case_.kind == OpKind::kScatter) return ScatterOf(input, output, root_);
  return ReduceScatterOf(input, output, case_.reduction, BlockCounts());
}

Operation Trial::Prepare() {
  switch (case_.kind) {
    case OpKind::kAllToAll:
      return PrepareAllToAll();
    case OpKind::kAllGather:
    case OpKind::kGather:
      return PrepareGathering();
    case OpKind::kReduceScatter:
    case OpKind::kScatter:
      return PrepareScattering();
    case OpKind::kBarrier:
      return BarrierOf();
    default:
      return PrepareUnparted();
  }
}

void Trial::ExpectElements(ConstBuffer got, int64_t rank, int64_t first) {
  for (int64_t i = 0; i < got.count; ++i) {
    const double value = LoadElement(case_.dtype, got.Bytes() + i * size_);
    const double expected =
        Element(case_.dtype, case_.reduction.op, rank, first + i);
    if (value == expected) continue;
    ADD_FAILURE() << Describe() << ": element " << i << " from rank " << rank
                  << " is " << value << ", not " << expected;
    return;
  }
}

void Trial::ExpectReduced(ConstBuffer got, int64_t first) {
  for (int64_t i = 0; i < got.count; ++i) {
    const double value = LoadElement(case_.dtype, got.Bytes() + i * size_);
    const Reference expected =
        ReduceElements(case_.dtype, case_.reduction, n_, first + i);
    if (std::abs(value - expected.value) <= expected.tolerance) continue;
    ADD_FAILURE() << Describe() << ": element " << i << " is " << value
                  << ", not " << expected.value << " +- " << expected.tolerance;
    return;
  }
}

void Trial::Check(const Operation& operation) {
  const ConstBuffer output = operation.output;
  switch (case_.kind) {
    case OpKind::kAllReduce:
      return ExpectReduced(output, 0);
    case OpKind::kReduce:
      if (is_root()) ExpectReduced(output, 0);
      return;
    case OpKind::kReduceScatter:
      return ExpectReduced(output, blocks_.offset(me_));
    case OpKind::kBroadcast:
      return ExpectElements(output, root_.value(), 0);
    case OpKind::kScatter:
      return ExpectElements(output, root_.value(), blocks_.offset(me_));
    case OpKind::kAllGather:
    case OpKind::kGather:
      for (int64_t r = 0; r < n_ && output.count > 0; ++r) {
        ExpectElements(output.Slice(blocks_.offset(r), blocks_.count(r)), r, 0);
      }
      return;
    case OpKind::kAllToAll: {
      const Blocks in = Blocks::Of(PairCounts(/*sending=*/false));
      for (int64_t r = 0; r < n_; ++r) {
        ExpectElements(output.Slice(in.offset(r), in.count(r)), r,
                       me_ * 100'000);
      }
      return;
    }
    default:
      return;
  }
}

void Trial::RunAndCheck(Caller& caller) {
  const Operation operation = Prepare();
  ASSERT_THAT(ValidateOperation(operation, engine_.rank(), n_), IsOk())
      << Describe();
  const std::vector<std::byte> before = memory_.Copy();
  ASSERT_THAT(caller.Run(operation), IsOk()) << Describe();
  Check(operation);
  EXPECT_TRUE(memory_.guard_holds() && apart_.guard_holds()) << Describe();
  if (!case_.in_place) {
    EXPECT_EQ(memory_.Copy(), before)
        << Describe() << ": the input was written";
  }
}

bool HasUneven(OpKind kind) {
  return kind == OpKind::kReduceScatter || kind == OpKind::kAllGather ||
         kind == OpKind::kAllToAll;
}

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

// Messages of one kind, all in flight at once.
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

  // Waits for the sends first; meanwhile receives progress.
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
  // Moving an inner vector does not move its elements.
  std::vector<std::vector<std::byte>> out_, in_, expected_;
  std::vector<Request> sends_, receives_;
};

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

int64_t Caller::Deadline() const {
  return MonotonicNanos() + absl::ToInt64Nanoseconds(timeout_);
}

Signature Caller::MessageSignature(uint64_t number, int64_t bytes) {
  Signature signature;
  signature.kind = OpKind::kSend;
  signature.sequence = number;
  signature.count = bytes;
  return signature;
}

absl::Status Caller::Run(const Operation& operation) {
  const Algorithm algorithm = engine_.Implements(operation.kind)
                                  ? Algorithm::kEngine
                                  : FallbackFor(operation.kind);
  OperationContext context(SignatureOf(operation, engine_.size(), /*group=*/1,
                                       ++sequence_, algorithm),
                           Deadline(), scratch_);
  engine_.Enter(context);
  absl::Status status = algorithm == Algorithm::kEngine
                            ? engine_.Run(operation, context)
                            : RunAlgorithm(algorithm, operation,
                                           *engine_.transport(), {}, context);
  engine_.Leave(context);
  scratch_.Reset();
  return status;
}

void CheckCollectives(Engine& engine, const CollectiveChecks& checks) {
  Caller caller(engine);
  int64_t turn = 0;
  const Allocate allocate =
      checks.allocate != nullptr ? checks.allocate : Allocate(Ordinary);
  const auto run = [&](Case c) {
    for (const bool uneven : {false, true}) {
      for (const bool in_place : {false, true}) {
        c.uneven = uneven;
        c.in_place = in_place;
        if (uneven && !HasUneven(c.kind)) continue;
        if (uneven && in_place && c.kind == OpKind::kAllToAll) continue;
        if (uneven && c.count < engine.size()) continue;
        if (::testing::Test::HasFatalFailure()) return;
        Trial(engine, c, Rank(turn++ % engine.size()), allocate)
            .RunAndCheck(caller);
      }
    }
  };
  for (const OpKind kind : kCollectiveKinds) {
    for (const DType dtype : kAllDTypes) {
      std::vector<int64_t> counts = checks.counts;
      if (dtype == DType::kF32 || dtype == DType::kBF16) {
        counts.insert(counts.end(), checks.large_counts.begin(),
                      checks.large_counts.end());
      }
      for (const int64_t count : counts) {
        if (!Reduces(kind)) {
          run({.kind = kind, .dtype = dtype, .count = count});
          continue;
        }
        if (!IsReducible(dtype)) continue;
        for (const ReduceOp op : kAllReduceOps) {
          if (!IsReducible(dtype, op)) continue;
          const double scale = op != ReduceOp::kScaledSum ? 1.0
                               : IsInteger(dtype)         ? 3.0
                                                          : 0.375;
          run({.kind = kind,
               .dtype = dtype,
               .reduction = {op, scale},
               .count = count});
        }
      }
    }
  }
}

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

void CheckLateRank(Engine& engine, bool collective) {
  constexpr int64_t kTimeout = 300'000'000;
  if (engine.size() == 1) return;
  if (IsLast(engine)) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(4 * kTimeout));
    return;
  }
  // Only the last rank's right neighbour waits for its message.
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
    // This rank waits too, and another of its threads aborts.
    std::thread waiter([&] {
      EXPECT_THAT(OneExchange(engine, timeout, collective, 2),
                  StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    engine.Abort(absl::AbortedError("enough"));
    waiter.join();
  } else if (IsLast(engine)) {
    // Arrives late, so that all others wait.
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    engine.Abort(absl::AbortedError("enough"));
  } else if (collective) {
    EXPECT_THAT(
        OneExchange(engine, timeout, collective, 2).code(),
        AnyOf(absl::StatusCode::kAborted, absl::StatusCode::kUnavailable,
              absl::StatusCode::kDeadlineExceeded));
  } else {
    // Stays until all ranks are done.
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
  // Only the receivers see a message mismatch.
  if (collective || me <= 1) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr("of 2"), HasSubstr("of 1"),
                                       HasSubstr("rank 0"))));
  }
  engine.Abort(status.ok() ? absl::AbortedError("done") : status);
}

}  // namespace tessera::collectives
