// With options.reproducible every algorithm gives the bits of Combine over the
// inputs in the order of ranks, whatever the size and the chunks.

#include "collectives/algorithms/algorithm_case.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

class ReproducibleTest : public ::testing::TestWithParam<Algorithm> {};

TEST_P(ReproducibleTest, BitsAreThoseOfALeftFoldRoundedOnce) {
  const Hierarchy uneven =
      *Hierarchy::FromGroups({{Rank(0), Rank(3)}, {Rank(1), Rank(2), Rank(4)}});
  for (int64_t ranks : {1, 2, 3, 5, 8, 12}) {
    std::vector<AlgorithmCase> cases;
    for (OpKind kind :
         {OpKind::kAllReduce, OpKind::kReduce, OpKind::kReduceScatter}) {
      if (!Supports(GetParam(), kind, false)) continue;
      for (DType dtype :
           {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
        for (ReduceOp op : kAllReduceOps) {
          for (int64_t count : {1, 7, 150}) {
            AlgorithmCase c{
                .algorithm = GetParam(), .kind = kind, .dtype = dtype};
            c.reduction = {op, op == ReduceOp::kScaledSum ? 0.3 : 1.0};
            c.count = count;
            c.root = Rank(ranks - 1);
            c.in_place = count == 7;
            c.options.reproducible = true;
            c.options.chunk_bytes = count == 1 ? kDefaultChunkBytes : 40;
            if (ranks == 5) c.options.hierarchy = &uneven;
            c.uneven = count == 150 && Supports(GetParam(), kind, true);
            c.seed = static_cast<uint64_t>(count);
            cases.push_back(c);
          }
        }
      }
    }
    ASSERT_EQ(RunCases(ranks, {.mode = ThreadMode::kLazy}, cases), "");
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReproducibleTest,
                         ::testing::ValuesIn(kAllAlgorithms),
                         [](const auto& info) {
                           return std::string(AlgorithmName(info.param));
                         });

}  // namespace
}  // namespace tessera::collectives
