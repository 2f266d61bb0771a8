#include "tools/train/model/moment_tensors.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/sharding/partition.h"
#include "tools/model_files/model_config.h"

namespace tessera::train {
namespace {

using tensor_parallel::IndexRange;
using tensor_parallel::ParameterRows;
using ::testing::ElementsAre;

// 4 query heads and 2 kv heads of 3, and 2 experts.
model_files::ModelConfig Model() {
  model_files::ModelConfig model = {.heads = 4, .kv_heads = 2, .head_size = 3};
  model.mixture.experts = 2;
  return model;
}

// The ends of the matrices.
std::vector<int64_t> EndsOf(std::string_view name, int64_t rows,
                            const model_files::ModelConfig& model = Model()) {
  std::vector<int64_t> ends;
  for (const IndexRange& matrix : MatricesOf(name, rows, model)) {
    EXPECT_EQ(matrix.begin, ends.empty() ? 0 : ends.back());
    ends.push_back(matrix.end);
  }
  return ends;
}

TEST(MomentTensorsTest, MatricesAreThoseOfPublishedModels) {
  EXPECT_THAT(EndsOf("embedding.weight", 257), ElementsAre(257));
  EXPECT_THAT(EndsOf("layers.0.attention.qkv.weight", 24),
              ElementsAre(12, 18, 24));
  EXPECT_THAT(EndsOf("layers.0.attention.qkv.bias", 24),
              ElementsAre(12, 18, 24));
  EXPECT_THAT(EndsOf("layers.0.attention.qkv.lora_b", 24),
              ElementsAre(12, 18, 24));
  EXPECT_THAT(EndsOf("layers.0.attention.qkv.lora_a", 6), ElementsAre(2, 4, 6));
  EXPECT_THAT(EndsOf("layers.0.attention.output.weight", 8), ElementsAre(8));
  EXPECT_THAT(EndsOf("layers.0.mlp.gate_up.weight", 10), ElementsAre(5, 10));
  EXPECT_THAT(EndsOf("layers.0.mlp.experts.gate_up.weight", 20),
              ElementsAre(5, 10, 15, 20));
  EXPECT_THAT(EndsOf("layers.0.mlp.experts.gate_up.lora_a", 6),
              ElementsAre(3, 6));
  EXPECT_THAT(EndsOf("layers.0.mlp.experts.down.weight", 16),
              ElementsAre(8, 16));
  model_files::ModelConfig latent = Model();
  latent.latent = {.query_rank = 5, .kv_rank = 4, .rope = 2};
  EXPECT_THAT(EndsOf("layers.0.attention.latent_down.weight", 11, latent),
              ElementsAre(5, 11));
  latent.latent.query_rank = 0;
  EXPECT_THAT(EndsOf("layers.0.attention.latent_down.weight", 6, latent),
              ElementsAre(6));
}

// A matrix [10, 4] of two matrices. The moments of columns are elements 10 to
// 14 and 14 to 18.
MomentTensor MomentsOfRank(const std::vector<ParameterRows>& rows,
                           IndexRange columns) {
  const std::vector<int64_t> shape = {10, 4};
  const std::vector<IndexRange> matrices = {{0, 5}, {5, 10}};
  return MomentsOf({"w", shape, rows, columns}, matrices);
}

TEST(MomentTensorsTest, RanksWithRowsShareTheMomentsOfColumns) {
  const MomentTensor first = MomentsOfRank({{{0, 3}}, {{5, 10}}}, {0, 4});
  EXPECT_EQ(first.name, "w.second_moment");
  EXPECT_EQ(first.size, 18);
  EXPECT_THAT(first.rows,
              ElementsAre(ParameterRows{{0, 3}}, ParameterRows{{5, 10}},
                          ParameterRows{{10, 14}}, ParameterRows{{14, 18}}));
  // Copies of rows are copies of moments.
  const MomentTensor second =
      MomentsOfRank({{{3, 5}}, {{5, 10}, false}}, {0, 4});
  EXPECT_THAT(second.rows,
              ElementsAre(ParameterRows{{3, 5}}, ParameterRows{{5, 10}, false},
                          ParameterRows{{10, 14}, false},
                          ParameterRows{{14, 18}, false}));
}

TEST(MomentTensorsTest, RanksWithColumnsShareTheMomentsOfRows) {
  EXPECT_THAT(MomentsOfRank({{{0, 10}}}, {0, 1}).rows,
              ElementsAre(ParameterRows{{0, 10}}, ParameterRows{{10, 11}},
                          ParameterRows{{14, 15}}));
  EXPECT_THAT(MomentsOfRank({{{0, 10}}}, {1, 4}).rows,
              ElementsAre(ParameterRows{{0, 10}, false},
                          ParameterRows{{11, 14}}, ParameterRows{{15, 18}}));
}

TEST(MomentTensorsTest, RanksWithoutElementsHaveNoMoments) {
  EXPECT_THAT(MomentsOfRank({{{0, 0}}, {{5, 5}}}, {0, 4}).rows,
              ElementsAre(ParameterRows{{0, 0}}));
  EXPECT_THAT(MomentsOfRank({{{0, 10}}}, {4, 4}).rows,
              ElementsAre(ParameterRows{{0, 0}}));
}

TEST(MomentTensorsTest, VectorsHaveAMomentForEachElement) {
  const std::vector<int64_t> shape = {7};
  const std::vector<ParameterRows> rows = {{{2, 5}}};
  const std::vector<IndexRange> matrices = {{0, 7}};
  const MomentTensor moments = MomentsOf({"b", shape, rows, {0, 1}}, matrices);
  EXPECT_EQ(moments.size, 7);
  EXPECT_THAT(moments.rows, ElementsAre(ParameterRows{{2, 5}}));
}

}  // namespace
}  // namespace tessera::train
