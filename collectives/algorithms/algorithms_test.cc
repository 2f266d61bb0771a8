// Every algorithm and kind, with 1 to 17 ranks, odd counts, all types and
// reductions, in place or not, on every kind of transport.

#include <set>
#include <tuple>

#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/algorithms/testing/algorithm_case.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

constexpr int64_t kRanks[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17};
// Small, so that a few hundred elements give many chunks.
constexpr int64_t kChunkBytes = 48;

std::vector<Algorithm> Algorithms() {
  return {kAllAlgorithms.begin() + 1, kAllAlgorithms.end()};
}

std::set<int64_t> CountsFor(int64_t ranks) {
  return {0, 1, 2, ranks - 1, ranks, ranks + 1, 97, 4 * kChunkBytes + 1};
}

// Cycles through types, reductions, roots, in-place and separate buffers, and
// chunk sizes.
class Rotation {
 public:
  AlgorithmCase Next(Algorithm algorithm, OpKind kind, int64_t ranks,
                     int64_t count, bool uneven) {
    constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kI64,
                                DType::kF16, DType::kU8,   DType::kF64,
                                DType::kI8,  DType::kI32};
    const auto step = static_cast<uint64_t>(++step_);
    AlgorithmCase c;
    c.algorithm = algorithm;
    c.kind = kind;
    c.dtype = kTypes[step % 8];
    c.reduction.op = kAllReduceOps[step / 3 % kAllReduceOps.size()];
    if (!IsReducible(c.dtype, c.reduction.op)) c.dtype = DType::kI32;
    if (c.reduction.op == ReduceOp::kScaledSum) {
      c.reduction.scale = IsInteger(c.dtype) ? 3 : 0.125;
    }
    c.count = count;
    c.uneven = uneven;
    c.root = Rank(static_cast<int64_t>(step) % ranks);
    c.in_place = step % 2 == 0 && !(uneven && kind == OpKind::kAllToAll);
    c.options.chunk_bytes = step % 5 == 0 ? kDefaultChunkBytes : kChunkBytes;
    c.seed = step;
    return c;
  }

 private:
  int64_t step_ = 0;
};

using Parameter = std::tuple<Algorithm, ThreadMode>;

class AlgorithmsTest : public ::testing::TestWithParam<Parameter> {};

std::vector<AlgorithmCase> CasesFor(Algorithm algorithm, int64_t ranks,
                                    Rotation& rotation) {
  std::vector<AlgorithmCase> cases;
  for (OpKind kind : kCollectiveKinds) {
    for (const bool uneven : {false, true}) {
      if (!Supports(algorithm, kind, uneven)) continue;
      for (int64_t count : CountsFor(ranks)) {
        for (int repeat = 0; repeat < 3; ++repeat) {
          cases.push_back(rotation.Next(algorithm, kind, ranks, count, uneven));
        }
      }
    }
  }
  return cases;
}

TEST_P(AlgorithmsTest, ComputesOperationOnEveryWorldSize) {
  const auto [algorithm, mode] = GetParam();
  Rotation rotation;
  for (int64_t ranks : kRanks) {
    if (mode == ThreadMode::kRandom && ranks > 9) continue;
    const ThreadWorldOptions options = {.mode = mode, .seed = 7};
    ASSERT_EQ(RunCases(ranks, options, CasesFor(algorithm, ranks, rotation)),
              "");
  }
}

TEST_P(AlgorithmsTest, EveryTypeAndReduction) {
  const auto [algorithm, mode] = GetParam();
  if (mode == ThreadMode::kRandom) GTEST_SKIP() << "covered by the others";
  std::vector<AlgorithmCase> cases;
  for (OpKind kind :
       {OpKind::kAllReduce, OpKind::kReduce, OpKind::kReduceScatter}) {
    if (!Supports(algorithm, kind, false)) continue;
    for (DType dtype : kAllDTypes) {
      if (!IsReducible(dtype)) continue;
      for (ReduceOp op : kAllReduceOps) {
        if (!IsReducible(dtype, op)) continue;
        AlgorithmCase c{.algorithm = algorithm, .kind = kind, .dtype = dtype};
        c.reduction = {op, op == ReduceOp::kScaledSum ? 2.0 : 1.0};
        c.count = 29;
        c.root = Rank(2);
        c.in_place = static_cast<int>(op) % 2 == 0;
        c.mixed = true;
        c.options.chunk_bytes = kChunkBytes;
        c.seed = static_cast<uint64_t>(op) + 3;
        cases.push_back(c);
      }
    }
  }
  for (int64_t ranks : {5, 8}) {
    ASSERT_EQ(RunCases(ranks, {.mode = mode}, cases), "");
  }
}

TEST_P(AlgorithmsTest, MessagesOfManyDefaultChunks) {
  const auto [algorithm, mode] = GetParam();
  if (mode == ThreadMode::kRandom) GTEST_SKIP() << "covered by the others";
  std::vector<AlgorithmCase> cases;
  for (OpKind kind : kCollectiveKinds) {
    if (!Supports(algorithm, kind, false)) continue;
    AlgorithmCase c{.algorithm = algorithm, .kind = kind};
    c.dtype = DType::kF32;
    c.count = 3 * kDefaultChunkBytes / 4 + 1;
    c.in_place = true;
    c.root = Rank(1);
    cases.push_back(c);
  }
  ASSERT_EQ(RunCases(3, {.mode = mode}, cases), "");
}

std::string NameOf(const ::testing::TestParamInfo<Parameter>& info) {
  constexpr std::string_view kNames[] = {"eager", "rendezvous", "lazy",
                                         "random"};
  const auto [algorithm, mode] = info.param;
  return std::string(AlgorithmName(algorithm)) + "_" +
         std::string(kNames[static_cast<int>(mode)]);
}

INSTANTIATE_TEST_SUITE_P(
    All, AlgorithmsTest,
    ::testing::Combine(::testing::ValuesIn(Algorithms()),
                       ::testing::ValuesIn(kAllThreadModes)),
    NameOf);

}  // namespace
}  // namespace tessera::collectives
