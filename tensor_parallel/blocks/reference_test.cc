// A block and a head on one rank match the losses and gradients of a plain
// float64 reference that shares no code with them.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/blocks/output_head.h"
#include "tensor_parallel/blocks/testing/mesh_case.h"
#include "tensor_parallel/blocks/testing/plain_llama.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/layers/testing/layer_case.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {
namespace {

using Complex = std::complex<double>;
using PlainWeights = plain_llama::Weights<Complex>;

constexpr plain_llama::Sizes kSizes = {.sequences = 2,
                                       .length = 5,
                                       .width = 6,
                                       .heads = 6,
                                       .kv_heads = 2,
                                       .head_size = 4,
                                       .hidden = 5,
                                       .vocabulary = 7,
                                       .epsilon = 1e-3,
                                       .rotary_base = 100,
                                       .window = 3};

// The library's results: the mean loss over one block and the head, and its
// gradients with respect to x and every parameter.
struct Model {
  std::vector<double> losses;
  std::vector<double> block_output;
  std::vector<double> x;
  std::vector<std::vector<double>> values;     // By parameter.
  std::vector<std::vector<double>> gradients;  // x first.
};

std::vector<int64_t> Targets() {
  std::vector<int64_t> targets;
  for (size_t t = 0; t < kSizes.tokens(); ++t) {
    targets.push_back(static_cast<int64_t>((3 * t + 2) % kSizes.vocabulary));
  }
  return targets;
}

// Token 3 has scale 0.
std::vector<double> Scales() {
  std::vector<double> scales;
  for (size_t t = 0; t < kSizes.tokens(); ++t) {
    scales.push_back(t == 3 ? 0 : 1 / static_cast<double>(t + 1));
  }
  return scales;
}

constexpr auto kWidth = static_cast<int64_t>(kSizes.width);
constexpr auto kTokens = static_cast<int64_t>(kSizes.tokens());

absl::StatusOr<TransformerBlock> MakeBlock(const TensorGroup& group) {
  const SequenceLayout layout =
      *SequenceLayout::Contiguous(static_cast<int64_t>(kSizes.length), 1);
  return TransformerBlock::Create(
      group, {group, layout},
      {.attention = {.width = kWidth,
                     .heads = static_cast<int64_t>(kSizes.heads),
                     .kv_heads = static_cast<int64_t>(kSizes.kv_heads),
                     .head_size = static_cast<int64_t>(kSizes.head_size),
                     .rotary = RotaryFrequencies{.base = kSizes.rotary_base},
                     .qkv_bias = true,
                     .output_bias = true,
                     .qk_norm = true,
                     .norm_epsilon = kSizes.epsilon,
                     .window = static_cast<int64_t>(kSizes.window),
                     .dtype = DType::kF64},
       .hidden = static_cast<int64_t>(kSizes.hidden),
       .mlp_bias = true,
       .norm_epsilon = kSizes.epsilon});
}

absl::StatusOr<OutputHead> MakeHead(const TensorGroup& group) {
  return OutputHead::Create(
      group, {.width = kWidth,
              .vocabulary = static_cast<int64_t>(kSizes.vocabulary),
              .norm_epsilon = kSizes.epsilon,
              .dtype = DType::kF64});
}

absl::StatusOr<Model> RunLibrary() {
  CpuOps ops({.threads = 1});
  TensorPool pool(HostMemory());
  const TensorGroup group(ops);
  TESSERA_ASSIGN_OR_RETURN(TransformerBlock block, MakeBlock(group));
  TESSERA_ASSIGN_OR_RETURN(OutputHead head, MakeHead(group));
  std::vector<Parameter*> parameters;
  block.AppendParameters("layers.0", parameters);
  head.AppendParameters("", parameters);
  TESSERA_RETURN_IF_ERROR(FillWeights(ops, parameters, DType::kF64));
  const int64_t shape[] = {kTokens, kWidth};
  TESSERA_ASSIGN_OR_RETURN(Tensor x, RandomTensor(DType::kF64, shape, 1));
  TESSERA_ASSIGN_OR_RETURN(Tensor y, Tensor::Create(DType::kF64, shape));
  TESSERA_ASSIGN_OR_RETURN(Tensor gradient, Tensor::Create(DType::kF64, shape));
  BlockActivations block_activations(pool);
  HeadActivations head_activations(pool);
  Model model;
  model.losses.resize(kSizes.tokens());
  const auto targets = Targets();
  const auto scales = Scales();
  TESSERA_RETURN_IF_ERROR(
      block.Forward(2, x.view(), y.view(), block_activations));
  TESSERA_ASSIGN_OR_RETURN(model.block_output, ValuesOf(y.view()));
  TESSERA_RETURN_IF_ERROR(head.Forward(*Partition::Balanced(kTokens, 1),
                                       y.view(), ListOf(targets),
                                       ListOf(model.losses), head_activations));
  // In place, with the gradients of weights computed last.
  TESSERA_RETURN_IF_ERROR(
      head.BackwardInput(ListOf(scales), gradient.view(), head_activations));
  TESSERA_RETURN_IF_ERROR(
      block.BackwardInput(gradient.view(), gradient.view(), block_activations));
  TESSERA_RETURN_IF_ERROR(head.BackwardWeight(head_activations));
  TESSERA_RETURN_IF_ERROR(block.BackwardWeight(block_activations));
  TESSERA_ASSIGN_OR_RETURN(model.x, ValuesOf(x.view()));
  TESSERA_ASSIGN_OR_RETURN(model.gradients.emplace_back(),
                           ValuesOf(gradient.view()));
  for (Parameter* p : parameters) {
    TESSERA_ASSIGN_OR_RETURN(model.values.emplace_back(), ValuesOf(p->value()));
    TESSERA_ASSIGN_OR_RETURN(model.gradients.emplace_back(),
                             ValuesOf(p->gradient()));
  }
  return model;
}

// x, then the library's parameters, as numbers to differentiate with respect
// to.
using Numbers = std::vector<std::vector<Complex>>;

Numbers NumbersOf(const Model& model) {
  Numbers numbers = {{model.x.begin(), model.x.end()}};
  for (const auto& values : model.values) {
    numbers.emplace_back(values.begin(), values.end());
  }
  return numbers;
}

// Splits the fused matrices, in the order of AppendParameters.
PlainWeights WeightsOf(const Numbers& n) {
  const auto cut = [](const std::vector<Complex>& from, size_t begin,
                      size_t size) {
    const auto at = from.begin() + static_cast<std::ptrdiff_t>(begin);
    return std::vector<Complex>(at, at + static_cast<std::ptrdiff_t>(size));
  };
  const size_t q = kSizes.heads * kSizes.head_size;
  const size_t kv = kSizes.kv_heads * kSizes.head_size;
  const size_t width = kSizes.width, hidden = kSizes.hidden;
  return {.attention_norm = n[1],
          .query = cut(n[2], 0, q * width),
          .key = cut(n[2], q * width, kv * width),
          .value = cut(n[2], (q + kv) * width, kv * width),
          .query_bias = cut(n[3], 0, q),
          .key_bias = cut(n[3], q, kv),
          .value_bias = cut(n[3], q + kv, kv),
          .query_norm = n[6],
          .key_norm = n[7],
          .output = n[4],
          .output_bias = n[5],
          .mlp_norm = n[8],
          .gate = cut(n[9], 0, hidden * width),
          .gate_bias = cut(n[10], 0, hidden),
          .up = cut(n[9], hidden * width, hidden * width),
          .up_bias = cut(n[10], hidden, hidden),
          .down = n[11],
          .down_bias = n[12],
          .final_norm = n[13],
          .table = n[14]};
}

plain_llama::Rows<Complex> PlainOutput(const Numbers& numbers) {
  plain_llama::Rows<Complex> x;
  for (size_t t = 0; t < kSizes.tokens(); ++t) {
    const auto row =
        numbers[0].begin() + static_cast<std::ptrdiff_t>(t * kSizes.width);
    x.emplace_back(row, row + static_cast<std::ptrdiff_t>(kSizes.width));
  }
  return plain_llama::Block(kSizes, WeightsOf(numbers), x);
}

std::vector<Complex> PlainLosses(const Numbers& numbers) {
  const std::vector<int64_t> targets = Targets();
  return plain_llama::Losses(kSizes, WeightsOf(numbers), PlainOutput(numbers),
                             {targets.begin(), targets.end()});
}

Complex PlainLoss(const Numbers& numbers) {
  const std::vector<Complex> losses = PlainLosses(numbers);
  const std::vector<double> scales = Scales();
  Complex sum = 0;
  for (size_t t = 0; t < losses.size(); ++t) sum += losses[t] * scales[t];
  return sum;
}

TEST(ReferenceTest, OutputsAndLossesAreThoseOfThePlainModel) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Model model, RunLibrary());
  const Numbers numbers = NumbersOf(model);
  const auto output = PlainOutput(numbers);
  for (size_t i = 0; i < model.block_output.size(); ++i) {
    EXPECT_NEAR(model.block_output[i],
                output[i / kSizes.width][i % kSizes.width].real(), 1e-12);
  }
  const std::vector<Complex> losses = PlainLosses(numbers);
  for (size_t t = 0; t < losses.size(); ++t) {
    EXPECT_NEAR(model.losses[t], losses[t].real(), 1e-12);
  }
}

TEST(ReferenceTest, AllGradientsAreThoseOfThePlainModel) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Model model, RunLibrary());
  Numbers numbers = NumbersOf(model);
  ASSERT_EQ(numbers.size(), 15u);
  constexpr double kStep = 1e-30;
  for (size_t p = 0; p < numbers.size(); ++p) {
    double largest = 0;
    for (const double g : model.gradients[p]) {
      largest = std::max(largest, std::abs(g));
    }
    ASSERT_GT(largest, 0);
    for (size_t i = 0; i < numbers[p].size(); ++i) {
      const Complex value = numbers[p][i];
      numbers[p][i] += Complex(0, kStep);
      const double derivative = PlainLoss(numbers).imag() / kStep;
      numbers[p][i] = value;
      ASSERT_NEAR(model.gradients[p][i], derivative, 1e-12 * largest)
          << "number " << i << " of tensor " << p;
    }
  }
}

}  // namespace
}  // namespace tessera::tensor_parallel
