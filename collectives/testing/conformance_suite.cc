#include "collectives/testing/conformance_suite.h"

#include <algorithm>
#include <optional>
#include <random>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/conformance_case.h"

namespace tessera::collectives {

using ::testing::Each;

void ConformanceTest::OnEveryWorld(const RankBody& body,
                                   const CommunicatorOptions& options) {
  for (int64_t ranks = 1; ranks <= GetParam().most_ranks; ++ranks) {
    ASSERT_THAT(GetParam().run(ranks, body, options), Each(IsOk()))
        << ranks << " ranks";
  }
}

namespace {

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

// Every type with every reduction where the kind reduces.
std::vector<ConformanceCase> TypesAndReductions(OpKind kind) {
  std::vector<ConformanceCase> cases;
  for (DType dtype : kTypes) {
    for (ReduceOp op : kAllReduceOps) {
      if (!Reduces(kind) && op != ReduceOp::kSum) continue;
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
            // Places and memories take turns: every pair of them comes up.
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

TEST_P(ConformanceTest, NobodyLeavesABarrierBeforeAllHaveEntered) {
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

}  // namespace

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ConformanceTest);

}  // namespace tessera::collectives
