// Compares the formulas of docs/collective_algorithms.md for bytes and steps
// with the messages that algorithms send, as counted by ThreadWorld.

#include "collectives/algorithms/testing/traffic_formulas.h"

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

struct Seen {
  int64_t most_bytes = 0;
  double seconds = 0;
};

// `question.bytes` of u8, which is the total of all ranks' blocks for kinds
// with blocks.
Operation OperationOf(const TrafficQuestion& question, std::vector<uint8_t>& in,
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

// Each message takes one second.
Seen Measure(const TrafficQuestion& question) {
  ThreadWorld world(question.ranks,
                    {.mode = ThreadMode::kEager, .alpha = 1, .beta = 0});
  for (const absl::Status& status : world.Run([&](Transport& transport) {
         std::vector<uint8_t> in;
         std::vector<uint8_t> out;
         const Operation operation = OperationOf(question, in, out);
         Scratch scratch;
         OperationContext context(
             SignatureOf(operation, question.ranks, 1, 1, question.algorithm),
             MonotonicNanos() + 30'000'000'000, scratch);
         return RunAlgorithm(question.algorithm, operation, transport,
                             AlgorithmOptions(), context);
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

std::string Name(const TrafficQuestion& q) {
  return std::string(AlgorithmName(q.algorithm)) + " " +
         std::string(OpKindName(q.kind)) + " of " + std::to_string(q.bytes) +
         " on " + std::to_string(q.ranks);
}

std::vector<TrafficQuestion> Questions() {
  std::vector<TrafficQuestion> questions;
  for (Algorithm algorithm : kAllAlgorithms) {
    if (algorithm == Algorithm::kHierarchical) continue;
    for (OpKind kind : kCollectiveKinds) {
      if (!Supports(algorithm, kind, false)) continue;
      for (int64_t ranks : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17}) {
        // Both are divisible by the number of ranks and by every power of two
        // up to 16. One is a small message, the other is not.
        const int64_t unit = 16 * ranks;
        for (int64_t bytes : {unit, 40'000 / unit * unit}) {
          questions.push_back({algorithm, kind, bytes, ranks});
        }
      }
    }
  }
  return questions;
}

TEST(TrafficFormulasTest, BytesOnWireMatchFormula) {
  for (const TrafficQuestion& question : Questions()) {
    if (question.kind == OpKind::kBarrier) {
      EXPECT_EQ(BytesOnWire(question), 0);
      continue;
    }
    EXPECT_EQ(BytesOnWire(question), Measure(question).most_bytes)
        << Name(question);
  }
}

int64_t FloorLog2Of(int64_t n) {
  int64_t log = 0;
  while (n >>= 1) ++log;
  return log;
}

// The column "steps" of the table, for messages of one chunk and trees that are
// binomial.
int64_t StepsOf(const TrafficQuestion& question) {
  const int64_t n = question.ranks;
  if (n == 1) return 0;
  const int64_t floor = FloorLog2Of(n);
  const bool is_power = n == int64_t{1} << floor;
  const int64_t ceiling = is_power ? floor : floor + 1;
  const int64_t fold = is_power ? 0 : 1;
  const bool both_ways = question.kind == OpKind::kAllReduce;
  switch (question.algorithm) {
    case Algorithm::kTree:
      return both_ways || question.kind == OpKind::kBarrier ? 2 * ceiling
                                                            : ceiling;
    case Algorithm::kRecursiveDoubling:
      return question.kind == OpKind::kBarrier ? ceiling : floor + 2 * fold;
    case Algorithm::kHalvingDoubling:
      if (both_ways) return 2 * floor + 2 * fold;
      if (question.kind == OpKind::kReduce) return 2 * floor + fold;
      if (question.kind == OpKind::kBroadcast) {
        return ceiling + floor + 2 * fold;
      }
      return floor + 2 * fold;
    case Algorithm::kBruck:
      return ceiling;
    default:  // kRing, kChain, kPairwise
      return both_ways ? 2 * (n - 1) : n - 1;
  }
}

TEST(TrafficFormulasTest, StepsOfShortMessagesMatchFormula) {
  for (const TrafficQuestion& question : Questions()) {
    if (question.bytes > 16 * question.ranks) continue;
    const auto steps = static_cast<double>(StepsOf(question));
    EXPECT_NEAR(Measure(question).seconds, steps, 0.05 * steps)
        << Name(question);
  }
}

}  // namespace
}  // namespace tessera::collectives
