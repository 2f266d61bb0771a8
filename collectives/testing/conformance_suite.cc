#include "collectives/testing/conformance_suite.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/small_float.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/communicator.h"
#include "collectives/operation/operation.h"
#include "collectives/testing/conformance_case.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

using ::testing::Each;

// The default algorithm and, if the engine has them, every algorithm by name.
std::vector<std::optional<Algorithm>> WaysOf(OpKind kind, bool uneven) {
  std::vector<std::optional<Algorithm>> ways = {std::nullopt};
  if (!ConformanceTest::GetParam().has_algorithms) return ways;
  for (Algorithm algorithm : kAllAlgorithms) {
    if (algorithm != Algorithm::kEngine && Supports(algorithm, kind, uneven)) {
      ways.push_back(algorithm);
    }
  }
  return ways;
}

constexpr DType kTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16,
                            DType::kI64, DType::kI32, DType::kI8,  DType::kU8};

bool IsParted(OpKind kind) {
  return kind == OpKind::kReduceScatter || kind == OpKind::kAllGather ||
         kind == OpKind::kAllToAll;
}

Reduction ReductionFor(ReduceOp op, DType dtype) {
  if (op != ReduceOp::kScaledSum) return {op, 1.0};
  return Reduction::ScaledSum(IsInteger(dtype) ? 3 : 0.5);
}

// Every type, combined with every reduction if the kind reduces.
std::vector<ConformanceCase> TypesAndReductions(OpKind kind) {
  std::vector<ConformanceCase> cases;
  for (DType dtype : kTypes) {
    for (ReduceOp op : kAllReduceOps) {
      if (Reduces(kind) ? !IsReducible(dtype, op) : op != ReduceOp::kSum) {
        continue;
      }
      ConformanceCase c;
      c.kind = kind;
      c.dtype = dtype;
      c.reduction = ReductionFor(op, dtype);
      cases.push_back(c);
    }
  }
  return cases;
}

TEST_P(ConformanceTest, EveryTypeReductionAndAlgorithm) {
  OnEveryWorld([&](Communicator& communicator) -> absl::Status {
    int64_t number = 0;
    for (OpKind kind : kCollectiveKinds) {
      for (const std::optional<Algorithm> way : WaysOf(kind, false)) {
        for (ConformanceCase c : TypesAndReductions(kind)) {
          if (++number % GetParam().keep_one_case_in != 0) continue;
          c.algorithm = way;
          c.count = 1 + number * 7 % 41;
          c.prepared = number % 2 * 2;
          c.root = Rank(number % communicator.size());
          c.seed = static_cast<uint64_t>(number);
          TESSERA_RETURN_IF_ERROR(RunCase(communicator, c));
        }
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(ConformanceTest, EveryCountPlaceAndMemory) {
  const int64_t counts[] = {0, 1, 2, 63, 1000, 4099, GetParam().largest_count};
  OnEveryWorld([&](Communicator& communicator) -> absl::Status {
    uint64_t number = 0;
    for (OpKind kind : kCollectiveKinds) {
      for (bool uneven : {false, true}) {
        if (uneven && !IsParted(kind)) continue;
        for (const std::optional<Algorithm> way : WaysOf(kind, uneven)) {
          for (int64_t count : counts) {
            // Alternates places and kinds of memory so that every pair occurs.
            ConformanceCase c;
            c.kind = kind;
            c.uneven = uneven;
            c.algorithm = way;
            c.count = IsParted(kind) ? count / communicator.size() : count;
            c.dtype = kTypes[++number % 8];
            c.in_place =
                number % 2 == 0 && !(uneven && kind == OpKind::kAllToAll);
            c.memory = static_cast<CaseMemory>(number / 2 % 3);
            c.started = number % 5 == 0;
            c.prepared = number % 5 == 1 ? 3 : 0;
            c.root = Rank(static_cast<int64_t>(number) % communicator.size());
            c.seed = number;
            TESSERA_RETURN_IF_ERROR(RunCase(communicator, c));
          }
        }
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(ConformanceTest, EveryRoot) {
  OnEveryWorld([&](Communicator& communicator) -> absl::Status {
    for (OpKind kind : kCollectiveKinds) {
      if (!HasRoot(kind)) continue;
      for (const std::optional<Algorithm> way : WaysOf(kind, false)) {
        for (int64_t root = 0; root < communicator.size(); ++root) {
          for (int64_t count : {5, 3000}) {
            ConformanceCase c;
            c.kind = kind;
            c.algorithm = way;
            c.root = Rank(root);
            c.count = count;
            c.in_place = root % 2 == 1;
            TESSERA_RETURN_IF_ERROR(RunCase(communicator, c));
          }
        }
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(ConformanceTest, RandomSequencesOfOperations) {
  for (int64_t ranks : {2, 3, 5, 8}) {
    if (ranks > GetParam().most_ranks) continue;
    const auto body = [&](Communicator& communicator) -> absl::Status {
      std::mt19937_64 random(static_cast<uint64_t>(ranks));
      for (int64_t i = 0; i < GetParam().random_operations / 4; ++i) {
        ConformanceCase c = RandomCase(random, communicator.size(),
                                       GetParam().largest_count / 10);
        const auto ways = WaysOf(c.kind, c.uneven);
        c.algorithm = ways[random() % ways.size()];
        TESSERA_RETURN_IF_ERROR(RunCase(communicator, c),
                                Annotate(_, absl::StrCat("operation ", i)));
      }
      return absl::OkStatus();
    };
    ASSERT_THAT(GetParam().run(ranks, body, {}), Each(IsOk())) << ranks;
  }
}

TEST_P(ConformanceTest, StartedOperationsKeepTheirOrder) {
  OnEveryWorld([](Communicator& communicator) -> absl::Status {
    constexpr int64_t kOperations = 40;
    std::vector<std::vector<int64_t>> values;
    std::vector<Work> works;
    for (int64_t i = 0; i < kOperations; ++i) {
      values.emplace_back(static_cast<size_t>(1 + i * 97 % 500), i);
    }
    for (auto& value : values) {
      const Buffer buffer{std::span(value)};
      TESSERA_ASSIGN_OR_RETURN(
          const Work work,
          communicator.Start(AllReduceOf(buffer, buffer, Reduction::Sum())));
      works.push_back(work);
    }
    TESSERA_RETURN_IF_ERROR(communicator.Barrier());
    for (int64_t i = kOperations - 1; i >= 0; --i) {
      TESSERA_RETURN_IF_ERROR(works[static_cast<size_t>(i)].Wait());
      for (int64_t value : values[static_cast<size_t>(i)]) {
        if (value != i * communicator.size()) {
          return absl::InternalError(absl::StrCat("operation ", i));
        }
      }
    }
    return absl::OkStatus();
  });
}

// A sum of all ranks, prepared, whose result follows from the rank and run.
class PreparedSum {
 public:
  static absl::StatusOr<std::unique_ptr<PreparedSum>> Create(
      Communicator& communicator, int64_t count) {
    auto sum = std::make_unique<PreparedSum>();
    sum->ranks_ = communicator.size();
    sum->mine_ = communicator.rank().value() + 1;
    sum->values_.resize(static_cast<size_t>(count));
    const Buffer buffer{std::span(sum->values_)};
    TESSERA_ASSIGN_OR_RETURN(
        PreparedOperation prepared,
        communicator.Prepare(AllReduceOf(buffer, buffer, Reduction::Sum())));
    sum->prepared_.emplace(std::move(prepared));
    return sum;
  }

  absl::Status RunAndCheck(int64_t number) {
    for (size_t i = 0; i < values_.size(); ++i) {
      values_[i] = mine_ * (number + static_cast<int64_t>(i));
    }
    TESSERA_RETURN_IF_ERROR(prepared_->Run());
    for (size_t i = 0; i < values_.size(); ++i) {
      const int64_t expected =
          ranks_ * (ranks_ + 1) / 2 * (number + static_cast<int64_t>(i));
      if (values_[i] == expected) continue;
      return absl::InternalError(absl::StrCat(
          "run ", number, " of ", values_.size(), " elements: element ", i,
          " is ", values_[i], ", not ", expected));
    }
    return absl::OkStatus();
  }

 private:
  int64_t ranks_ = 0, mine_ = 0;
  std::vector<int64_t> values_;
  std::optional<PreparedOperation> prepared_;
};

TEST_P(ConformanceTest, PreparedOperationsMixWithOthers) {
  OnEveryWorld([](Communicator& communicator) -> absl::Status {
    std::vector<std::unique_ptr<PreparedSum>> sums;
    for (const int64_t count : {0, 1, 7, 8, 70, 71, 72, 500, 1999, 3000}) {
      TESSERA_ASSIGN_OR_RETURN(auto sum,
                               PreparedSum::Create(communicator, count));
      sums.push_back(std::move(sum));
    }
    std::mt19937_64 random(5);  // The same on all ranks.
    std::vector<int64_t> values(50, 1);
    const Buffer buffer{std::span(values)};
    for (int64_t i = 0; i < GetParam().random_operations / 5; ++i) {
      std::optional<Work> started;
      const uint64_t kind = random() % 4;
      if (kind == 0) {
        // The prepared runs after it may find the lane busy on some ranks.
        TESSERA_ASSIGN_OR_RETURN(
            started,
            communicator.Start(AllReduceOf(buffer, buffer, Reduction::Max())));
      } else if (kind == 1) {
        const Rank root(static_cast<int64_t>(
            random() % static_cast<uint64_t>(communicator.size())));
        TESSERA_RETURN_IF_ERROR(communicator.Broadcast(buffer, root));
      }
      for (uint64_t runs = random() % 4; runs > 0; --runs) {
        TESSERA_RETURN_IF_ERROR(sums[random() % sums.size()]->RunAndCheck(i));
      }
      if (started) TESSERA_RETURN_IF_ERROR(started->Wait());
    }
    return absl::OkStatus();
  });
}

TEST_P(ConformanceTest, CountsRunsOfPreparedOperations) {
  OnEveryWorld([](Communicator& communicator) -> absl::Status {
    constexpr int64_t kRuns = 150;
    const auto count_sums = [&] {
      OperationTotals all;
      for (const auto& [key, totals] : communicator.Statistics()) {
        if (key.first == OpKind::kAllReduce) all.Add(totals);
      }
      EXPECT_EQ(all.count, kRuns);
      EXPECT_EQ(all.bytes, kRuns * 3 * 8);
      EXPECT_GT(all.ns, 0);
      EXPECT_LE(all.shortest_ns, all.longest_ns);
    };
    {
      TESSERA_ASSIGN_OR_RETURN(auto sum, PreparedSum::Create(communicator, 3));
      for (int64_t i = 0; i < kRuns; ++i) {
        TESSERA_RETURN_IF_ERROR(sum->RunAndCheck(i));
      }
      count_sums();
    }
    count_sums();  // Also after it has been destroyed.
    return absl::OkStatus();
  });
}

TEST_P(ConformanceTest, DifferentPreparationsKeepGroupUsable) {
  OnEveryWorld([](Communicator& communicator) -> absl::Status {
    const bool last = communicator.rank().value() == communicator.size() - 1;
    std::vector<float> values(8, 1.0f);
    const Buffer buffer = Buffer(std::span(values)).Slice(0, last ? 7 : 8);
    const auto sum = [&] {
      return communicator.Prepare(
          AllReduceOf(buffer, buffer, Reduction::Sum()));
    };
    if (communicator.size() > 1) {
      EXPECT_THAT(
          sum().status(),
          StatusIs(absl::StatusCode::kFailedPrecondition,
                   ::testing::AllOf(::testing::HasSubstr("of 8 f32, sum"),
                                    ::testing::HasSubstr("of 7 f32, sum"))));
    }
    EXPECT_THAT(communicator.Prepare(SendOf(buffer, Rank(0))).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         ::testing::HasSubstr("only collectives")));
    EXPECT_THAT(
        communicator.Prepare(BarrierOf(), {.on_done = [](absl::Status) {}})
            .status(),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 ::testing::HasSubstr("on_done")));
    EXPECT_THAT(
        communicator.Prepare(BroadcastOf(buffer, buffer, Rank(99))).status(),
        StatusIs(absl::StatusCode::kInvalidArgument));
    return communicator.AllReduce(Buffer(std::span(values)), Reduction::Sum());
  });
}

TEST_P(ConformanceTest, BarrierWaitsForEveryRank) {
  OnEveryWorld([](Communicator& communicator) -> absl::Status {
    for (const auto& way : WaysOf(OpKind::kBarrier, false)) {
      for (int round = 0; round < 5; ++round) {
        const int64_t entered = MonotonicNanos();
        TESSERA_RETURN_IF_ERROR(communicator.Barrier({.algorithm = way}));
        const int64_t left = MonotonicNanos();
        int64_t latest = entered;
        TESSERA_RETURN_IF_ERROR(communicator.AllReduce(
            Buffer(std::span(&latest, 1)), Reduction::Max()));
        if (left < latest) return absl::InternalError("left too early");
      }
    }
    return absl::OkStatus();
  });
}

// Tests of messages, groups, accuracy and invalid calls.

// Messages between every rank and its neighbours in a ring.
struct Ring {
  explicit Ring(const Communicator& c)
      : right((c.rank().value() + 1) % c.size()),
        left((c.rank().value() + c.size() - 1) % c.size()) {}
  Rank right;
  Rank left;
};

std::vector<int32_t> Message(int64_t rank, int64_t number, int64_t count) {
  std::vector<int32_t> message(static_cast<size_t>(count));
  std::iota(message.begin(), message.end(),
            static_cast<int32_t>(1000 * rank + number));
  return message;
}

TEST_P(ConformanceTest, MessagesArriveWholeAndInOrder) {
  OnEveryWorld([](Communicator& communicator) -> absl::Status {
    const Ring ring(communicator);
    for (int64_t count : {0, 1, 10, 5000, 300'000}) {
      const auto out = Message(communicator.rank().value(), count, count);
      const auto expected = Message(ring.left.value(), count, count);
      std::vector<int32_t> in(static_cast<size_t>(count));
      TESSERA_RETURN_IF_ERROR(
          communicator.SendReceive(ConstBuffer(std::span(out)), ring.right,
                                   Buffer(std::span(in)), ring.left));
      if (in != expected) return absl::InternalError("send_receive");
    }
    std::vector<Work> works;
    std::vector<std::vector<int32_t>> in, out;
    for (int64_t i = 0; i < 50; ++i) {
      const int64_t count = i * 131 % 2000;
      out.push_back(Message(communicator.rank().value(), i, count));
      in.emplace_back(static_cast<size_t>(count));
    }
    // Posts all sends first: no send may wait for its receive.
    for (auto& message : out) {
      TESSERA_ASSIGN_OR_RETURN(
          const Work work, communicator.Start(SendOf(
                               ConstBuffer(std::span(message)), ring.right)));
      works.push_back(work);
    }
    for (auto& message : in) {
      TESSERA_ASSIGN_OR_RETURN(
          const Work work,
          communicator.Start(ReceiveOf(Buffer(std::span(message)), ring.left)));
      works.push_back(work);
    }
    for (const Work& work : works) TESSERA_RETURN_IF_ERROR(work.Wait());
    for (int64_t i = 0; i < 50; ++i) {
      if (in[static_cast<size_t>(i)] !=
          Message(ring.left.value(), i, i * 131 % 2000)) {
        return absl::InternalError(absl::StrCat("message ", i));
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(ConformanceTest, MessagesAndCollectivesRunSideBySide) {
  OnEveryWorld([](Communicator& communicator) -> absl::Status {
    const Ring ring(communicator);
    for (int64_t round = 0; round < 20; ++round) {
      std::vector<int32_t> in(777);
      const auto out = Message(communicator.rank().value(), round, 777);
      // The receive stays open while a collective runs; its send follows later.
      TESSERA_ASSIGN_OR_RETURN(
          const Work received,
          communicator.Start(ReceiveOf(Buffer(std::span(in)), ring.left)));
      std::vector<double> values(500, 1.0);
      TESSERA_RETURN_IF_ERROR(
          communicator.AllReduce(Buffer(std::span(values)), Reduction::Sum()));
      TESSERA_RETURN_IF_ERROR(
          communicator.Send(ConstBuffer(std::span(out)), ring.right));
      TESSERA_RETURN_IF_ERROR(received.Wait());
      if (in != Message(ring.left.value(), round, 777) ||
          values[499] != static_cast<double>(communicator.size())) {
        return absl::InternalError("wrong value");
      }
    }
    return absl::OkStatus();
  });
}

// True if the engine supports tags; otherwise checks that it rejects them.
absl::StatusOr<bool> HasTags(Communicator& communicator) {
  for (const std::string_view engine :
       {"in_process", "shared_memory", "gloo", "two_level"}) {
    if (communicator.engine_name() == engine) return true;
  }
  const absl::Status status =
      communicator.Run(SendOf(ConstBuffer(), Rank(0), /*tag=*/3));
  if (!absl::IsUnimplemented(status) ||
      !absl::StrContains(status.message(), "no messages with tags")) {
    return absl::InternalError(absl::StrCat("tags: ", status.ToString()));
  }
  return false;
}

TEST_P(ConformanceTest, MessagesOvertakeOtherTags) {
  OnEveryWorld([](Communicator& communicator) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const bool has, HasTags(communicator));
    if (!has) return absl::OkStatus();
    const Ring ring(communicator);
    // Three messages of each tag, with sizes that fit into a channel and sizes
    // that do not.
    constexpr int64_t kSizes[] = {0, 1, 5000, 300'000};
    constexpr int32_t kTags = 4, kEach = 3;
    std::vector<std::vector<int32_t>> out;
    std::vector<Work> works;
    for (int32_t i = 0; i < kTags * kEach; ++i) {
      out.push_back(Message(communicator.rank().value(), i, kSizes[i % kTags]));
    }
    for (int32_t i = 0; i < kTags * kEach; ++i) {
      TESSERA_ASSIGN_OR_RETURN(
          const Work work,
          communicator.Start(
              SendOf(ConstBuffer(std::span(out[static_cast<size_t>(i)])),
                     ring.right, i % kTags)));
      works.push_back(work);
    }
    for (int32_t tag = kTags - 1; tag >= 0; --tag) {
      for (int32_t i = tag; i < kTags * kEach; i += kTags) {
        std::vector<int32_t> in(static_cast<size_t>(kSizes[tag]));
        TESSERA_RETURN_IF_ERROR(
            communicator.Run(ReceiveOf(Buffer(std::span(in)), ring.left, tag)));
        if (in != Message(ring.left.value(), i, kSizes[tag])) {
          return absl::InternalError(absl::StrCat("message ", i));
        }
      }
    }
    for (const Work& work : works) TESSERA_RETURN_IF_ERROR(work.Wait());
    return absl::OkStatus();
  });
}

TEST_P(ConformanceTest, ReceivesFromAnyRankAndNamesIt) {
  OnEveryWorld([](Communicator& communicator) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const bool has, HasTags(communicator));
    if (!has) return absl::OkStatus();
    const int64_t n = communicator.size(), rank = communicator.rank().value();
    constexpr int64_t kCount = 20'000;
    for (int64_t root = 0; root < n; ++root) {
      const auto out = Message(rank, root, kCount);
      TESSERA_ASSIGN_OR_RETURN(
          const Work sent, communicator.Start(SendOf(
                               ConstBuffer(std::span(out)), Rank(root), 7)));
      std::vector<bool> seen(static_cast<size_t>(n));
      for (int64_t i = 0; rank == root && i < n; ++i) {
        std::vector<int32_t> in(kCount);
        Rank source;
        if (i % 2 == 0) {
          TESSERA_ASSIGN_OR_RETURN(
              source, communicator.ReceiveFromAny(Buffer(std::span(in)), 7));
        } else {
          TESSERA_ASSIGN_OR_RETURN(const Work work,
                                   communicator.Start(ReceiveOf(
                                       Buffer(std::span(in)), kAnySource, 7)));
          TESSERA_RETURN_IF_ERROR(work.Wait());
          source = work.source().value_or(kAnySource);
        }
        if (source.value() < 0 || source.value() >= n ||
            seen[static_cast<size_t>(source.value())] ||
            in != Message(source.value(), root, kCount)) {
          return absl::InternalError(absl::StrCat("from ", source.value()));
        }
        seen[static_cast<size_t>(source.value())] = true;
      }
      TESSERA_RETURN_IF_ERROR(sent.Wait());
    }
    return absl::OkStatus();
  });
}

// A collective between the start and the end of a message does not wait for the
// message.
TEST_P(ConformanceTest, MessagesWithTagsMoveDuringCollectives) {
  OnEveryWorld([](Communicator& communicator) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const bool has, HasTags(communicator));
    if (!has) return absl::OkStatus();
    const Ring ring(communicator);
    constexpr int64_t kCount = 500'000;
    for (int64_t round = 0; round < 4; ++round) {
      const auto out = Message(communicator.rank().value(), round, kCount);
      std::vector<int32_t> in(kCount);
      std::atomic<int> calls = 0;
      const auto count_call = [&](const absl::Status& status) {
        if (status.ok()) ++calls;
      };
      // One side blocks; the other uses started operations.
      const bool starts = (communicator.rank().value() + round) % 2 == 0;
      TESSERA_ASSIGN_OR_RETURN(
          const Work received,
          communicator.Start(ReceiveOf(Buffer(std::span(in)), ring.left, 9),
                             {.on_done = count_call}));
      const Operation send = SendOf(ConstBuffer(std::span(out)), ring.right, 9);
      std::optional<Work> sent;
      if (starts) {
        TESSERA_ASSIGN_OR_RETURN(
            sent, communicator.Start(send, {.on_done = count_call}));
      } else {
        TESSERA_RETURN_IF_ERROR(communicator.Run(send));
      }
      TESSERA_RETURN_IF_ERROR(communicator.Barrier());
      if (sent) TESSERA_RETURN_IF_ERROR(sent->Wait());
      TESSERA_RETURN_IF_ERROR(received.Wait());
      if (in != Message(ring.left.value(), round, kCount) ||
          calls != (starts ? 2 : 1)) {
        return absl::InternalError(absl::StrCat("round ", round));
      }
    }
    return absl::OkStatus();
  });
}

// Every rank sends to every rank; receives come in a random order, some from
// any rank.
TEST_P(ConformanceTest, RandomMessagesWithTagsMatch) {
  OnEveryWorld([](Communicator& communicator) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const bool has, HasTags(communicator));
    if (!has) return absl::OkStatus();
    const int64_t n = communicator.size(), rank = communicator.rank().value();
    constexpr int32_t kTags = 3, kEach = 6;
    const auto count_of = [](int32_t tag) { return tag == 1 ? 40'000 : 37; };
    std::mt19937_64 random(static_cast<uint64_t>(rank) + 5);
    std::vector<std::vector<int32_t>> out;
    std::vector<std::pair<Rank, int32_t>> sends, receives;
    for (int32_t i = 0; i < kEach; ++i) {
      for (int64_t to = 0; to < n; ++to) {
        for (int32_t tag = 0; tag < kTags; ++tag) {
          sends.emplace_back(Rank(to), tag);
          out.push_back(Message(rank, i, count_of(tag)));
          receives.emplace_back(tag == 2 ? kAnySource : Rank(to), tag);
        }
      }
    }
    std::shuffle(receives.begin(), receives.end(), random);
    std::vector<Work> works;
    for (size_t i = 0; i < sends.size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(
          const Work work,
          communicator.Start(SendOf(ConstBuffer(std::span(out[i])),
                                    sends[i].first, sends[i].second)));
      works.push_back(work);
    }
    std::map<std::pair<int64_t, int32_t>, int64_t> next;
    for (const auto& [source, tag] : receives) {
      std::vector<int32_t> in(static_cast<size_t>(count_of(tag)));
      Rank from = source;
      if (source == kAnySource) {
        TESSERA_ASSIGN_OR_RETURN(
            from, communicator.ReceiveFromAny(Buffer(std::span(in)), tag));
      } else {
        TESSERA_RETURN_IF_ERROR(
            communicator.Run(ReceiveOf(Buffer(std::span(in)), source, tag)));
      }
      if (in !=
          Message(from.value(), next[{from.value(), tag}]++, count_of(tag))) {
        return absl::InternalError(
            absl::StrCat("from ", from.value(), ", tag ", tag));
      }
    }
    for (const Work& work : works) TESSERA_RETURN_IF_ERROR(work.Wait());
    return absl::OkStatus();
  });
}

TEST_P(ConformanceTest, RejectsInvalidTags) {
  OnEveryWorld([](Communicator& communicator) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const bool has, HasTags(communicator));
    if (!has) return absl::OkStatus();
    std::vector<int32_t> data(3);
    const Buffer buffer((std::span(data)));
    const auto refuses = [&](const Operation& operation,
                             std::string_view text) {
      const absl::Status status = communicator.Run(operation);
      return absl::IsInvalidArgument(status) &&
             absl::StrContains(status.message(), text);
    };
    Operation both = SendReceiveOf(buffer, Rank(0), Buffer(), Rank(0));
    both.tag = 1;
    if (!refuses(SendOf(buffer, Rank(0), -2), "tag -2 is invalid") ||
        !refuses(ReceiveOf(buffer, kAnySource), "without a tag") ||
        !refuses(both, "has no tag")) {
      return absl::InternalError("not refused");
    }
    // The group is not broken yet; different sizes then break it.
    TESSERA_RETURN_IF_ERROR(communicator.Barrier());
    if (communicator.size() != 2) return absl::OkStatus();
    const absl::Status status =
        communicator.rank().value() == 0
            ? communicator.Run(SendOf(buffer, Rank(1), 4))
            : communicator.Run(ReceiveOf(buffer.Slice(0, 2), Rank(0), 4));
    if (communicator.rank().value() == 0) return absl::OkStatus();
    return absl::IsFailedPrecondition(status) &&
                   absl::StrContains(status.message(),
                                     "rank 0 sent 3 i32 with tag 4, rank 1 "
                                     "receives 2 i32")
               ? absl::OkStatus()
               : absl::InternalError(status.ToString());
  });
}

TEST_P(ConformanceTest, SplitGroupsAreIndependent) {
  OnEveryWorld([](Communicator& communicator) -> absl::Status {
    const int64_t rank = communicator.rank().value();
    // Colours 0 and 1, in descending order of rank; every fifth rank has no
    // colour.
    const int64_t colour = rank % 5 == 4 ? -1 : rank % 2;
    TESSERA_ASSIGN_OR_RETURN(auto part, communicator.Split(colour, -rank));
    if ((part == nullptr) != (colour < 0)) {
      return absl::InternalError("membership");
    }
    if (part == nullptr) return absl::OkStatus();
    std::vector<int64_t> members;
    for (int64_t r = communicator.size() - 1; r >= 0; --r) {
      if (r % 5 != 4 && r % 2 == colour) members.push_back(r);
    }
    std::vector<int64_t> gathered(members.size());
    TESSERA_RETURN_IF_ERROR(part->AllGather(ConstBuffer(std::span(&rank, 1)),
                                            Buffer(std::span(gathered))));
    return gathered == members ? absl::OkStatus()
                               : absl::InternalError("wrong members");
  });
}

TEST_P(ConformanceTest, SubgroupsMayOverlapAndOutliveTheirParent) {
  OnEveryWorld([](Communicator& communicator) -> absl::Status {
    const int64_t n = communicator.size();
    std::vector<std::unique_ptr<Communicator>> pairs;
    for (int64_t first = 0; first < n - 1; ++first) {
      const std::vector<Rank> members = {Rank(first + 1), Rank(first)};
      if (std::count(members.begin(), members.end(), communicator.rank()) ==
          0) {
        continue;
      }
      TESSERA_ASSIGN_OR_RETURN(auto pair, communicator.Subgroup(members));
      pairs.push_back(std::move(pair));
    }
    for (const auto& pair : pairs) {
      int64_t sum = communicator.rank().value();
      TESSERA_RETURN_IF_ERROR(
          pair->AllReduce(Buffer(std::span(&sum, 1)), Reduction::Sum()));
      if (sum % 2 != 1) return absl::InternalError("no neighbours");
    }
    return absl::OkStatus();
  });
}

// Random numbers of different magnitudes, whose sum depends on the order.
std::vector<float> Rough(int64_t rank, size_t count) {
  std::mt19937_64 random(static_cast<uint64_t>(rank) + 77);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = normal(random) * (i % 3 == 0 ? 1e6f : 1.0f);
  }
  return values;
}

TEST_P(ConformanceTest, SumsAreCloseToFloat64) {
  OnEveryWorld([](Communicator& communicator) -> absl::Status {
    constexpr size_t kCount = 3001;
    for (const auto& way : WaysOf(OpKind::kAllReduce, false)) {
      std::vector<float> sums = Rough(communicator.rank().value(), kCount);
      std::vector<double> exact(kCount), size(kCount);
      for (int64_t r = 0; r < communicator.size(); ++r) {
        const std::vector<float> values = Rough(r, kCount);
        for (size_t i = 0; i < kCount; ++i) {
          exact[i] += values[i];
          size[i] += std::abs(values[i]);
        }
      }
      TESSERA_RETURN_IF_ERROR(communicator.AllReduce(
          Buffer(std::span(sums)), Reduction::Sum(), {.algorithm = way}));
      for (size_t i = 0; i < kCount; ++i) {
        // n - 1 additions, each off by at most half a unit of 2^-23.
        const double bound =
            static_cast<double>(communicator.size()) * size[i] * 6e-8;
        if (std::abs(sums[i] - exact[i]) > bound) {
          return absl::InternalError(absl::StrCat("sum ", i));
        }
      }
    }
    return absl::OkStatus();
  });
}

template <typename T>
absl::Status CheckSameBits(Communicator& communicator, Reduction reduction) {
  constexpr size_t kCount = 5003;
  std::vector<T> first;
  for (const auto& way : WaysOf(OpKind::kAllReduce, false)) {
    const std::vector<float> rough = Rough(communicator.rank().value(), kCount);
    std::vector<T> values(rough.begin(), rough.end());
    TESSERA_RETURN_IF_ERROR(communicator.AllReduce(
        Buffer(std::span(values)), reduction, {.algorithm = way}));
    if (first.empty()) first = values;
    // With a different size the same elements have the same bits.
    std::vector<T> part(rough.begin(), rough.begin() + 100);
    TESSERA_RETURN_IF_ERROR(communicator.AllReduce(
        Buffer(std::span(part)), reduction, {.algorithm = way}));
    if (std::memcmp(values.data(), first.data(), kCount * sizeof(T)) != 0 ||
        std::memcmp(part.data(), first.data(), part.size() * sizeof(T)) != 0) {
      return absl::InternalError(absl::StrCat(
          "other bits by ", way ? AlgorithmName(*way) : "the engine"));
    }
  }
  return absl::OkStatus();
}

TEST_P(ConformanceTest, ReproducibleResultsHaveTheSameBitsEverywhere) {
  CommunicatorOptions options;
  options.reproducible = true;
  OnEveryWorld(
      [](Communicator& communicator) -> absl::Status {
        TESSERA_RETURN_IF_ERROR(
            CheckSameBits<float>(communicator, Reduction::Sum()));
        TESSERA_RETURN_IF_ERROR(
            CheckSameBits<BF16>(communicator, Reduction::Average()));
        return CheckSameBits<double>(communicator, Reduction::ScaledSum(0.3));
      },
      options);
}

TEST_P(ConformanceTest, RejectedCallKeepsGroupUsable) {
  OnEveryWorld([](Communicator& communicator) -> absl::Status {
    std::vector<float> values(8, 1.0f);
    EXPECT_THAT(communicator.Broadcast(Buffer(std::span(values)),
                                       Rank(communicator.size())),
                StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(
        communicator.AllReduce(Buffer(std::span(values)), Reduction::Sum(),
                               {.algorithm = Algorithm::kBruck}),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 ::testing::HasSubstr("bruck does not support all_reduce")));
    EXPECT_THAT(
        communicator.AllReduce(Buffer(std::span(values)), Reduction::Sum(),
                               {.timeout = absl::ZeroDuration()}),
        StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(communicator.status(), IsOk());
    return communicator.AllReduce(Buffer(std::span(values)), Reduction::Sum());
  });
}

TEST_P(ConformanceTest, CountsCompletedOperations) {
  OnEveryWorld([](Communicator& communicator) -> absl::Status {
    std::vector<float> values(256, 1.0f);
    for (int i = 0; i < 3; ++i) {
      TESSERA_RETURN_IF_ERROR(
          communicator.AllReduce(Buffer(std::span(values)), Reduction::Sum()));
    }
    OperationTotals all;
    for (const auto& [key, totals] : communicator.Statistics()) {
      if (key.first != OpKind::kAllReduce) continue;
      all.count += totals.count;
      all.bytes += totals.bytes;
      all.ns += totals.ns;
    }
    EXPECT_EQ(all.count, 3);
    EXPECT_EQ(all.bytes, 3 * 1024);
    EXPECT_GT(all.ns, 0);
    EXPECT_EQ(communicator.RecentOperations().back().signature.sequence, 3u);
    return absl::OkStatus();
  });
}

}  // namespace

void ConformanceTest::OnEveryWorld(const RankBody& body,
                                   const CommunicatorOptions& options) {
  for (int64_t ranks = GetParam().fewest_ranks; ranks <= GetParam().most_ranks;
       ++ranks) {
    ASSERT_THAT(GetParam().run(ranks, body, options), Each(IsOk()))
        << ranks << " ranks";
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ConformanceTest);

}  // namespace tessera::collectives
