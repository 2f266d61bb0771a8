// Compares the formulas of cost.h with the messages that algorithms send,
// counted and timed by ThreadWorld, and with values computed by hand.

#include "collectives/algorithms/cost.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/algorithms/run_algorithm.h"
#include "collectives/engine/operation_context.h"
#include "collectives/testing/thread_transport.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;

// The observed traffic and times.
struct Seen {
  int64_t most_bytes = 0;
  double seconds = 0;
};

// `question.bytes` of u8: the blocks of all ranks together for kinds with
// blocks.
Operation OperationOf(const CostQuestion& question, std::vector<uint8_t>& in,
                      std::vector<uint8_t>& out) {
  const int64_t block = question.bytes / question.ranks;
  const OpKind kind = question.kind;
  const bool gathers = kind == OpKind::kAllGather || kind == OpKind::kGather;
  const bool scatters =
      kind == OpKind::kReduceScatter || kind == OpKind::kScatter;
  in.resize(static_cast<size_t>(gathers ? block : question.bytes));
  out.resize(static_cast<size_t>(scatters ? block : question.bytes));
  Operation operation;
  operation.kind = kind;
  operation.input = ConstBuffer(std::span<const uint8_t>(in));
  operation.output = Buffer(std::span<uint8_t>(out));
  return operation;
}

Seen Measure(const CostQuestion& question, const LinkCost& link,
             const Hierarchy* hierarchy = nullptr) {
  ThreadWorld world(question.ranks, {.mode = ThreadMode::kEager,
                                     .alpha = link.alpha_s,
                                     .beta = link.beta_s_per_byte});
  const AlgorithmOptions options = {.hierarchy = hierarchy,
                                    .chunk_bytes = question.chunk_bytes};
  for (const absl::Status& status : world.Run([&](Transport& transport) {
         std::vector<uint8_t> in;
         std::vector<uint8_t> out;
         const Operation operation = OperationOf(question, in, out);
         Scratch scratch;
         OperationContext context(
             SignatureOf(operation, question.ranks, 1, 1, question.algorithm),
             MonotonicNanos() + 30'000'000'000, scratch);
         return RunAlgorithm(question.algorithm, operation, transport, options,
                             context);
       })) {
    EXPECT_THAT(status, IsOk());
  }
  Seen seen;
  for (int64_t rank = 0; rank < question.ranks; ++rank) {
    seen.most_bytes = std::max(seen.most_bytes, world.sent(rank).bytes);
    seen.seconds = std::max(seen.seconds, world.clock(rank));
  }
  return seen;
}

std::string Name(const CostQuestion& q) {
  return std::string(AlgorithmName(q.algorithm)) + " " +
         std::string(OpKindName(q.kind)) + " of " + std::to_string(q.bytes) +
         " on " + std::to_string(q.ranks) + " in " +
         std::to_string(q.chunk_bytes);
}

std::vector<CostQuestion> Questions() {
  std::vector<CostQuestion> questions;
  for (Algorithm algorithm : kAllAlgorithms) {
    if (algorithm == Algorithm::kHierarchical) continue;
    for (OpKind kind : kCollectiveKinds) {
      if (!Supports(algorithm, kind, false)) continue;
      for (int64_t ranks : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17}) {
        // Both are divisible by the number of ranks and by every power of two
        // up to 16; they lie on either side of the limit for small messages.
        const int64_t unit = 16 * ranks;
        for (int64_t bytes : {unit, 40'000 / unit * unit}) {
          questions.push_back({algorithm, kind, bytes, ranks});
        }
      }
    }
  }
  return questions;
}

TEST(CostTest, BytesOnTheWireAreThoseOfTheFormula) {
  for (const CostQuestion& question : Questions()) {
    EXPECT_THAT(BytesOnWire(question),
                IsOkAndHolds(question.kind == OpKind::kBarrier
                                 ? 0
                                 : Measure(question, {}).most_bytes))
        << Name(question);
  }
}

// Compares with a cost for messages alone, and with one for bytes alone.
void ExpectModelHolds(const CostQuestion& question, const LinkCost& link,
                      double least, double most) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const double predicted,
                               PredictSeconds(question, link));
  const double seen = Measure(question, link).seconds;
  if (predicted == 0) {
    EXPECT_EQ(seen, 0) << Name(question);
    return;
  }
  EXPECT_GE(seen / predicted, least) << Name(question);
  EXPECT_LE(seen / predicted, most) << Name(question);
}

// With few ranks, double trees do not keep both ports of all ranks busy in
// every unit, so the formula is an upper bound.
bool IsBound(const CostQuestion& question) {
  return question.algorithm == Algorithm::kTree && question.ranks > 2 &&
         question.bytes > (16 << 10);
}

TEST(CostTest, StepsTakeTheModelledTimeOfEveryMessage) {
  for (const CostQuestion& question : Questions()) {
    ExpectModelHolds(question, {.alpha_s = 1}, IsBound(question) ? 0.4 : 0.95,
                     1.05);
  }
}

TEST(CostTest, BytesTakeTheModelledTime) {
  for (const CostQuestion& question : Questions()) {
    ExpectModelHolds(question, {.beta_s_per_byte = 1},
                     IsBound(question) ? 0.4 : 0.9, 1.05);
  }
}

TEST(CostTest, ChunksFillThePipe) {
  for (CostQuestion question : Questions()) {
    if (question.bytes < 20'000 || question.ranks > 9) continue;
    question.chunk_bytes = 500;
    ExpectModelHolds(question, {.alpha_s = 100, .beta_s_per_byte = 1},
                     IsBound(question) ? 0.6 : 0.85, 1.15);
  }
}

TEST(CostTest, TextbookFormulas) {
  const LinkCost link = {
      .alpha_s = 1, .beta_s_per_byte = 0.5, .gamma_s_per_byte = 0.25};
  const auto seconds = [&](Algorithm algorithm, OpKind kind, int64_t bytes,
                           int64_t ranks) {
    return *PredictSeconds({algorithm, kind, bytes, ranks}, link);
  };
  // 2 (n-1) alpha + 2 (n-1)/n S beta + (n-1)/n S gamma.
  EXPECT_DOUBLE_EQ(seconds(Algorithm::kRing, OpKind::kAllReduce, 800, 8),
                   14 + 2 * 700 * 0.5 + 700 * 0.25);
  // log2 n (alpha + S beta + S gamma).
  EXPECT_DOUBLE_EQ(
      seconds(Algorithm::kRecursiveDoubling, OpKind::kAllReduce, 800, 8),
      3 * (1 + 400 + 200));
  // Two more steps if the number of ranks is not a power of two.
  EXPECT_DOUBLE_EQ(
      seconds(Algorithm::kRecursiveDoubling, OpKind::kAllReduce, 800, 9),
      4 * (1 + 400 + 200) + 401);
  // 2 log2 n alpha + 2 (n-1)/n S beta + (n-1)/n S gamma.
  EXPECT_DOUBLE_EQ(
      seconds(Algorithm::kHalvingDoubling, OpKind::kAllReduce, 800, 8),
      6 + 2 * 700 * 0.5 + 700 * 0.25);
  // ceil(log2 n) alpha + (n-1)/n S beta.
  EXPECT_DOUBLE_EQ(seconds(Algorithm::kBruck, OpKind::kAllGather, 700, 7),
                   3 + 300);
  // ceil(log2 n) alpha + S/2 log2 n beta.
  EXPECT_DOUBLE_EQ(seconds(Algorithm::kBruck, OpKind::kAllToAll, 800, 8),
                   3 + 3 * 400 * 0.5);
  // (n-1) alpha + (n-1)/n S beta.
  EXPECT_DOUBLE_EQ(seconds(Algorithm::kPairwise, OpKind::kAllToAll, 700, 7),
                   6 + 300);
  // (n - 2 + K)(alpha + c beta): one chunk here.
  EXPECT_DOUBLE_EQ(seconds(Algorithm::kChain, OpKind::kBroadcast, 100, 5),
                   4 * 51);
  EXPECT_DOUBLE_EQ(seconds(Algorithm::kTree, OpKind::kBarrier, 0, 9), 8);
  EXPECT_DOUBLE_EQ(
      seconds(Algorithm::kRecursiveDoubling, OpKind::kBarrier, 0, 9), 4);
}

TEST(CostTest, ChunksOverlapCombiningWithTravel) {
  const LinkCost link = {.beta_s_per_byte = 1, .gamma_s_per_byte = 1};
  CostQuestion question = {Algorithm::kRing, OpKind::kReduceScatter, 8000, 2};
  EXPECT_THAT(PredictSeconds(question, link), IsOkAndHolds(8000.0));
  question.chunk_bytes = 1000;
  EXPECT_THAT(PredictSeconds(question, link), IsOkAndHolds(5000.0));
}

TEST(CostTest, HierarchicalAddsUpItsLevels) {
  const LinkCost near = {.alpha_s = 1, .beta_s_per_byte = 0.001};
  const LinkCost far = {.alpha_s = 20, .beta_s_per_byte = 0.01};
  const std::vector<LevelCost> levels = {{4, near}, {3, far}};
  const int64_t s = 120'000;
  CostQuestion question = {Algorithm::kHierarchical, OpKind::kAllReduce, s, 12};
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const double across,
      PredictSeconds({Algorithm::kRing, OpKind::kAllReduce, s / 4, 3}, far));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const double within,
      PredictSeconds({Algorithm::kRing, OpKind::kAllReduce, s, 4}, near));
  EXPECT_THAT(PredictSeconds(question, levels),
              IsOkAndHolds(DoubleNear(across + within, 1e-9)));
  question.kind = OpKind::kBarrier;
  // Up and down: 2 steps within groups; 1 + 1 steps and a fold across.
  EXPECT_THAT(PredictSeconds(question, levels),
              IsOkAndHolds(DoubleNear(4 * 1 + 3 * 20, 1e-9)));
}

TEST(CostTest, HierarchicalTakesTheModelledTime) {
  for (const auto& [inner, outer] :
       {std::pair<int64_t, int64_t>{2, 2}, {4, 2}, {2, 4}, {4, 3}, {1, 4}}) {
    std::vector<std::vector<int64_t>> labels(1);
    for (int64_t rank = 0; rank < inner * outer; ++rank) {
      labels[0].push_back(rank / inner);
    }
    TESSERA_ASSERT_OK_AND_ASSIGN(const Hierarchy hierarchy,
                                 Hierarchy::FromLabels(labels));
    const LinkCost link = {.alpha_s = 100, .beta_s_per_byte = 0.1};
    const std::vector<LevelCost> levels = {{inner, link}, {outer, link}};
    for (OpKind kind : kCollectiveKinds) {
      if (!Supports(Algorithm::kHierarchical, kind, false)) continue;
      for (int64_t bytes : {int64_t{480}, int64_t{240'000}}) {
        const CostQuestion question = {Algorithm::kHierarchical, kind, bytes,
                                       inner * outer};
        TESSERA_ASSERT_OK_AND_ASSIGN(const double predicted,
                                     PredictSeconds(question, levels));
        const double seen = Measure(question, link, &hierarchy).seconds;
        EXPECT_NEAR(seen / predicted, 1, 0.4) << Name(question);
      }
    }
  }
}

TEST(CostTest, RefusesWhatCannotBe) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(
      PredictSeconds({Algorithm::kRing, OpKind::kBarrier, 0, 2}, LinkCost()),
      StatusIs(kInvalid, HasSubstr("ring does not support barrier")));
  EXPECT_THAT(
      PredictSeconds({Algorithm::kRing, OpKind::kAllReduce, -1, 2}, LinkCost()),
      StatusIs(kInvalid, HasSubstr("a cost for -1 bytes")));
  EXPECT_THAT(BytesOnWire({Algorithm::kRing, OpKind::kAllReduce, 1, 0}),
              StatusIs(kInvalid, HasSubstr("0 ranks")));
  EXPECT_THAT(BytesOnWire({Algorithm::kHierarchical, OpKind::kAllReduce, 1, 2}),
              StatusIs(absl::StatusCode::kUnimplemented));
  const std::vector<LevelCost> levels = {{2, {}}, {2, {}}};
  EXPECT_THAT(
      PredictSeconds({Algorithm::kHierarchical, OpKind::kAllReduce, 8, 6},
                     levels),
      StatusIs(kInvalid,
               HasSubstr("levels have 4 ranks, but the question has 6")));
  EXPECT_THAT(
      PredictSeconds({Algorithm::kRing, OpKind::kAllReduce, 8, 4}, levels),
      StatusIs(kInvalid, HasSubstr("algorithm ring has no levels")));
}

}  // namespace
}  // namespace tessera::collectives
