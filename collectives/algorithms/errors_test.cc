// Errors are returned at once, keep their code, and name the algorithm and
// step.

#include "base/status_matchers.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/algorithms/run_algorithm.h"
#include "collectives/algorithms/testing/algorithm_case.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kMillisecond = 1'000'000;

// Every combination of algorithm and kind.
std::vector<AlgorithmCase> AllForms() {
  std::vector<AlgorithmCase> forms;
  for (Algorithm algorithm : kAllAlgorithms) {
    for (OpKind kind : kCollectiveKinds) {
      if (!Supports(algorithm, kind, false)) continue;
      AlgorithmCase c{.algorithm = algorithm, .kind = kind};
      c.count = 300;
      c.options.chunk_bytes = 256;
      forms.push_back(c);
    }
  }
  return forms;
}

// Runs an operation on this rank with its own buffers.
absl::Status RunForm(Transport& transport, const AlgorithmCase& form,
                     uint64_t sequence, int64_t patience_ns) {
  const int64_t n = transport.size();
  std::vector<float> input(static_cast<size_t>(form.count * n));
  std::vector<float> output(input.size());
  const bool in_blocks = form.kind == OpKind::kReduceScatter ||
                         form.kind == OpKind::kScatter ||
                         form.kind == OpKind::kAllToAll;
  const bool out_blocks = form.kind == OpKind::kAllGather ||
                          form.kind == OpKind::kGather ||
                          form.kind == OpKind::kAllToAll;
  Operation operation;
  operation.kind = form.kind;
  operation.input =
      ConstBuffer(input.data(), form.count * (in_blocks ? n : 1), DType::kF32);
  operation.output =
      Buffer(output.data(), form.count * (out_blocks ? n : 1), DType::kF32);
  Scratch scratch;
  OperationContext context(
      SignatureOf(operation, n, 1, sequence, form.algorithm),
      MonotonicNanos() + patience_ns, scratch);
  return RunAlgorithm(form.algorithm, operation, transport, form.options,
                      context);
}

TEST(ErrorsTest, DeadlineErrorNamesAlgorithmAndStep) {
  for (const AlgorithmCase& form : AllForms()) {
    ThreadWorld world(4, {.mode = ThreadMode::kRendezvous});
    const int64_t begin = MonotonicNanos();
    const std::vector<absl::Status> statuses =
        world.Run([&](Transport& transport) -> absl::Status {
          if (transport.rank() == Rank(3)) return absl::OkStatus();
          return RunForm(transport, form, 1, 50 * kMillisecond);
        });
    EXPECT_LT(MonotonicNanos() - begin, 5000 * kMillisecond);
    int failed = 0;
    for (const absl::Status& status : statuses) {
      if (status.ok()) continue;
      ++failed;
      EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsAborted(status))
          << status;
      EXPECT_THAT(std::string(status.message()),
                  StartsWith(std::string(AlgorithmName(form.algorithm))))
          << Describe(form);
    }
    EXPECT_GE(failed, 1) << Describe(form);
  }
}

TEST(ErrorsTest, AbortUnblocksEveryWaiter) {
  for (const AlgorithmCase& form : AllForms()) {
    ThreadWorld world(4);
    const int64_t begin = MonotonicNanos();
    const std::vector<absl::Status> statuses =
        world.Run([&](Transport& transport) -> absl::Status {
          if (transport.rank() == Rank(0)) {
            return absl::UnavailableError("rank 0 has died");
          }
          return RunForm(transport, form, 1, 60'000 * kMillisecond);
        });
    EXPECT_LT(MonotonicNanos() - begin, 5000 * kMillisecond) << Describe(form);
    for (int64_t rank = 1; rank < 4; ++rank) {
      const absl::Status& status = statuses[static_cast<size_t>(rank)];
      if (status.ok()) continue;  // It received nothing from rank 0.
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted,
                                   HasSubstr("rank 0 has died")));
    }
  }
}

TEST(ErrorsTest, DetectsMismatchedCalls) {
  for (const AlgorithmCase& form : AllForms()) {
    ThreadWorld world(3, {.mode = ThreadMode::kRendezvous});
    const std::vector<absl::Status> statuses =
        world.Run([&](Transport& transport) -> absl::Status {
          const uint64_t sequence = transport.rank() == Rank(1) ? 8 : 7;
          return RunForm(transport, form, sequence, 10'000 * kMillisecond);
        });
    EXPECT_THAT(statuses, ::testing::Contains(StatusIs(
                              absl::StatusCode::kFailedPrecondition,
                              AllOf(HasSubstr("#7"), HasSubstr("#8")))))
        << Describe(form);
  }
}

TEST(ErrorsTest, StepsAreCounted) {
  AlgorithmCase form{.algorithm = Algorithm::kRing};
  form.count = 10;
  ThreadWorld world(4);
  const std::vector<absl::Status> statuses =
      world.Run([&](Transport& transport) -> absl::Status {
        if (transport.rank() == Rank(0)) return absl::OkStatus();
        return RunForm(transport, form, 1, 50 * kMillisecond);
      });
  // Rank 1 waits for rank 0 from the start.
  EXPECT_THAT(std::string(statuses[1].message()),
              StartsWith("ring, step 1 of 6: "));
}

TEST(ErrorsTest, RejectsUnsupportedOperations) {
  ThreadWorld world(1);
  AlgorithmCase form{.algorithm = Algorithm::kRing, .kind = OpKind::kBarrier};
  EXPECT_THAT(RunForm(world.transport(0), form, 1, kMillisecond),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "algorithm ring does not support barrier; use tree, "
                       "recursive_doubling, hierarchical"));
  form.algorithm = Algorithm::kEngine;
  EXPECT_THAT(RunForm(world.transport(0), form, 1, kMillisecond),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("algorithm engine does not support barrier")));
  form.kind = OpKind::kSend;
  EXPECT_THAT(
      RunForm(world.transport(0), form, 1, kMillisecond),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("does not support send; no algorithm supports it")));
}

TEST(ErrorsTest, RejectsInvalidOptions) {
  ThreadWorld world(1);
  AlgorithmCase form{.algorithm = Algorithm::kRing};
  form.options.chunk_bytes = 0;
  EXPECT_THAT(RunForm(world.transport(0), form, 1, kMillisecond),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("chunk_bytes of 0; at least 1 is needed")));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Hierarchy two, Hierarchy::Flat(2));
  form.options = {.hierarchy = &two};
  EXPECT_THAT(RunForm(world.transport(0), form, 1, kMillisecond),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the hierarchy has 2 ranks, the group 1")));
}

}  // namespace
}  // namespace tessera::collectives
