#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/run_algorithm.h"
#include "collectives/testing/engine_checks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

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

namespace {

// For what an engine does not implement.
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

}  // namespace

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

namespace {

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
  // What rank `from` sends `to` in an all_to_all.
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
  Memory apart_;   // The output otherwise.
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

}  // namespace

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

}  // namespace tessera::collectives
