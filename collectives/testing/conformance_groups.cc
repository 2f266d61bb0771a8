// The conformance suite: messages, groups, accuracy, refusals.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype/bfloat16.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/conformance_suite.h"

namespace tessera::collectives {
namespace {

// Every rank's neighbours in a ring.
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
    // All sends first: none may wait for its receive.
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
      // The receive is open while a collective runs; its send comes later.
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

TEST_P(ConformanceTest, SplitGroupsAreApart) {
  OnEveryWorld([](Communicator& communicator) -> absl::Status {
    const int64_t rank = communicator.rank().value();
    // Colours 0 and 1, in descending order of rank; every fifth rank has none.
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

// Random numbers of several magnitudes, whose sum depends on the order.
std::vector<float> Rough(int64_t rank, size_t count) {
  std::mt19937_64 random(static_cast<uint64_t>(rank) + 77);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = normal(random) * (i % 3 == 0 ? 1e6f : 1.0f);
  }
  return values;
}

TEST_P(ConformanceTest, SumsAreCloseToThoseInFloat64) {
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
    // Another size: the same elements have the same bits.
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

TEST_P(ConformanceTest, ARefusedCallLeavesTheGroupWhole) {
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

TEST_P(ConformanceTest, CountsWhatRan) {
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
}  // namespace tessera::collectives
