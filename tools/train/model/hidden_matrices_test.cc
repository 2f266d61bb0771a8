#include "tools/train/model/hidden_matrices.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tensor_parallel/sharding/fused_partition.h"
#include "tools/model_files/model_config.h"

namespace tessera::train {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// 6 query heads and 2 kv heads of 4, over 20 hidden units.
model_files::ModelConfig Config() {
  return {.hidden = 20,
          .intermediate = 27,
          .heads = 6,
          .kv_heads = 2,
          .head_size = 4};
}

absl::StatusOr<tensor_parallel::Parameter> ParameterOf(
    tensor_parallel::Parameter::Spec spec) {
  tensor_parallel::CpuOps ops({.threads = 1});
  return tensor_parallel::Parameter::Create(
      tensor_parallel::TensorGroup(ops).WithoutWeightMemory(), std::move(spec));
}

TEST(HiddenMatricesTest, IncludeAttentionMlpsAndExperts) {
  for (const char* name :
       {"layers.0.attention.qkv.weight", "layers.12.attention.output.weight",
        "layers.0.mlp.gate_up.weight", "layers.0.mlp.down.weight",
        "layers.3.mlp.experts.gate_up.weight",
        "layers.3.mlp.experts.down.weight", "layers.3.mlp.shared.down.weight",
        "layers.0.attention.latent_down.weight",
        "layers.0.attention.query_up.weight",
        "layers.0.attention.kv_up.weight"}) {
    EXPECT_TRUE(IsHiddenMatrix(name)) << name;
  }
  for (const char* name :
       {"embedding.weight", "head.output.weight", "head.norm.weight",
        "layers.0.attention.qkv.bias", "layers.0.attention.query_norm.weight",
        "layers.0.attention_norm.weight", "layers.0.mlp_norm.weight",
        "layers.3.mlp.router.weight", "layers.3.mlp.router.bias"}) {
    EXPECT_FALSE(IsHiddenMatrix(name)) << name;
  }
}

// With 4 ranks two share each kv head, and hold the same keys.
TEST(HiddenMatricesTest, QueriesKeysAndValuesAreThreeMatrices) {
  for (const int64_t ranks : {1, 2, 4}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto parts,
                                 tensor_parallel::QkvParts(6, 2, 4, ranks));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const auto partition,
        tensor_parallel::FusedPartition::Create(parts, ranks));
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::vector<tensor_parallel::ParameterRows> rows;
      for (const auto& range : partition.RangesOf(rank)) {
        rows.push_back({range});
      }
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const auto parameter,
          ParameterOf({.name = "layers.0.attention.qkv.weight",
                       .shape = {40, 20},
                       .rows = rows,
                       .columns = {0, 20}}));
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const auto matrices,
          HiddenMatricesOf(parameter, Config(),
                           {.tensor_rank = rank, .tensor_ranks = ranks}));
      ASSERT_THAT(matrices, SizeIs(3));
      EXPECT_EQ(matrices[0].whole, (MatrixPart{{0, 24}, {0, 20}}));
      EXPECT_EQ(matrices[1].whole, (MatrixPart{{24, 32}, {0, 20}}));
      EXPECT_EQ(matrices[2].whole, (MatrixPart{{32, 40}, {0, 20}}));
      int64_t begin = 0;
      for (size_t m = 0; m < 3; ++m) {
        ASSERT_THAT(matrices[m].parts, SizeIs(ranks));
        const MatrixPart& own = matrices[m].parts[static_cast<size_t>(rank)];
        EXPECT_EQ(own.rows, rows[m].range);
        EXPECT_EQ(matrices[m].begin, begin);
        begin += own.elements();
        // All rows, in order.
        int64_t end = matrices[m].whole.rows.begin;
        for (const MatrixPart& part : matrices[m].parts) {
          EXPECT_LE(part.rows.begin, end);
          end = std::max(end, part.rows.end);
        }
        EXPECT_EQ(end, matrices[m].whole.rows.end);
      }
    }
  }
}

// Each rank has the whole projection to latent vectors, and some heads of the
// others.
TEST(HiddenMatricesTest, ProjectionsOfLatentAttention) {
  model_files::ModelConfig config = Config();
  config.kv_heads = config.heads;
  config.head_size = 7;
  config.latent = {
      .query_rank = 5, .kv_rank = 6, .nope = 3, .rope = 4, .value = 2};
  const MatrixRanks ranks = {.tensor_rank = 1, .tensor_ranks = 4};
  const auto check = [&](const std::string& name, std::vector<int64_t> shape,
                         tensor_parallel::IndexRange rows,
                         tensor_parallel::IndexRange columns,
                         std::vector<MatrixPart> wholes) {
    SCOPED_TRACE(name);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const auto parameter,
        ParameterOf({.name = absl::StrCat("layers.0.attention.", name),
                     .shape = std::move(shape),
                     .rows = {{rows}},
                     .columns = columns}));
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto matrices,
                                 HiddenMatricesOf(parameter, config, ranks));
    ASSERT_THAT(matrices, SizeIs(wholes.size()));
    for (size_t m = 0; m < wholes.size(); ++m) {
      EXPECT_EQ(matrices[m].whole, wholes[m]);
      const MatrixPart& own = matrices[m].parts[1];
      EXPECT_EQ(own.columns, columns);
      EXPECT_EQ(own.rows, wholes.size() > 1 ? wholes[m].rows : rows);
    }
  };
  check("latent_down.weight", {15, 20}, {0, 15}, {0, 20},
        {{{0, 5}, {0, 20}}, {{5, 15}, {0, 20}}});
  // The ranks have 2, 2, 1 and 1 of the 6 heads.
  check("query_up.weight", {42, 5}, {14, 28}, {0, 5}, {{{0, 42}, {0, 5}}});
  check("kv_up.weight", {30, 6}, {10, 20}, {0, 6}, {{{0, 30}, {0, 6}}});
  check("output.weight", {20, 12}, {0, 20}, {4, 8}, {{{0, 20}, {0, 12}}});
}

// 4 experts of 5 units over 2 expert ranks and 2 tensor ranks: gate and up of
// each, 3 and 2 rows.
TEST(HiddenMatricesTest, EachExpertHasItsMatrices) {
  const MatrixRanks ranks = {
      .tensor_rank = 1, .tensor_ranks = 2, .expert_rank = 1, .expert_ranks = 2};
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto gate_up,
      ParameterOf({.name = "layers.0.mlp.experts.gate_up.weight",
                   .shape = {40, 20},
                   .rows = {{{23, 25}}, {{28, 30}}, {{33, 35}}, {{38, 40}}},
                   .columns = {0, 20},
                   .matrices = 4,
                   .expert_parallel = true}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto of_gate_up,
                               HiddenMatricesOf(gate_up, Config(), ranks));
  ASSERT_THAT(of_gate_up, SizeIs(4));
  for (size_t m = 0; m < 4; ++m) {
    const int64_t first = 20 + 5 * static_cast<int64_t>(m);
    EXPECT_EQ(of_gate_up[m].whole, (MatrixPart{{first, first + 5}, {0, 20}}));
    EXPECT_EQ(of_gate_up[m].parts[0].rows.size(), 3);
    EXPECT_EQ(of_gate_up[m].begin, 40 * static_cast<int64_t>(m));
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto down, ParameterOf({.name = "layers.0.mlp.experts.down.weight",
                                    .shape = {80, 5},
                                    .rows = {{{40, 80}}},
                                    .columns = {3, 5},
                                    .matrices = 4,
                                    .expert_parallel = true}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto of_down,
                               HiddenMatricesOf(down, Config(), ranks));
  ASSERT_THAT(of_down, SizeIs(2));
  EXPECT_EQ(of_down[1].whole, (MatrixPart{{60, 80}, {0, 5}}));
  EXPECT_EQ(of_down[1].parts[0], (MatrixPart{{60, 80}, {0, 3}}));
  EXPECT_EQ(of_down[1].begin, 40);
}

TEST(HiddenMatricesTest, RejectUnsupportedSharding) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto parameter,
                               ParameterOf({.name = "layers.0.mlp.down.weight",
                                            .shape = {20, 27},
                                            .rows = {{{0, 20}}},
                                            .columns = {0, 10}}));
  EXPECT_THAT(
      HiddenMatricesOf(parameter, Config(), {.tensor_ranks = 2}),
      StatusIs(absl::StatusCode::kInternal,
               HasSubstr("does not hold rows 0 to 20 and columns 0 to "
                         "14 of parameter \"layers.0.mlp.down.weight")));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto norm,
                               ParameterOf({.name = "layers.0.mlp_norm.weight",
                                            .shape = {20},
                                            .rows = {{{0, 20}}}}));
  EXPECT_THAT(HiddenMatricesOf(norm, Config(), {}), IsOkAndHolds(IsEmpty()));
}

}  // namespace
}  // namespace tessera::train
