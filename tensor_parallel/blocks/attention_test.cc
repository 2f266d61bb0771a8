// Errors of an attention block, and its choice of context parallelism.
// Results are compared in parity_test.cc and reference_test.cc.
#include "tensor_parallel/blocks/attention.h"

#include <cmath>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/blocks/testing/block_flight.h"
#include "tensor_parallel/blocks/testing/mesh_case.h"
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/context/ulysses_attention.h"
#include "tensor_parallel/layers/testing/layer_case.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

namespace tessera::tensor_parallel {
namespace {

using namespace block_flight;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Uses all-to-all attention instead of ring attention.
TEST(AttentionTest, TakesAnyWayToShareTheContext) {
  std::vector<std::vector<double>> outputs[2];
  for (const bool ulysses : {false, true}) {
    outputs[ulysses].resize(2);
    EXPECT_THAT(
        RunMesh({.cp = 2},
                [&](const TensorGroup& tensor,
                    const TensorGroup& context) -> absl::Status {
                  const auto options = OptionsOf(DType::kF64, Recompute::kNone);
                  ContextGroup group = {context,
                                        *SequenceLayout::Zigzag(kLength, 2)};
                  TESSERA_ASSIGN_OR_RETURN(
                      const ContextAttentionOptions core,
                      Attention::CoreOptions(tensor, options.attention));
                  if (ulysses) {
                    TESSERA_ASSIGN_OR_RETURN(
                        UlyssesAttention attention,
                        UlyssesAttention::Create(context, group.layout, core));
                    group.core = std::make_shared<UlyssesAttention>(
                        std::move(attention));
                  }
                  TESSERA_ASSIGN_OR_RETURN(
                      TransformerBlock block,
                      TransformerBlock::Create(tensor, group, options));
                  std::vector<Parameter*> parameters;
                  block.AppendParameters("", parameters);
                  TESSERA_RETURN_IF_ERROR(
                      FillWeights(tensor.ops(), parameters, DType::kF64));
                  TensorPool pool(HostMemory());
                  Flight flight(pool, options, kTokens / 2, 9);
                  TESSERA_RETURN_IF_ERROR(flight.Forward(block));
                  TESSERA_RETURN_IF_ERROR(flight.BackwardInput(block));
                  TESSERA_ASSIGN_OR_RETURN(
                      outputs[ulysses][static_cast<size_t>(context.rank())],
                      ValuesOf(flight.gradient.view()));
                  return absl::OkStatus();
                }),
        Each(IsOk()));
  }
  for (size_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(outputs[0][rank].size(), outputs[1][rank].size());
    for (size_t i = 0; i < outputs[0][rank].size(); ++i) {
      EXPECT_NEAR(outputs[0][rank][i], outputs[1][rank][i], 1e-11);
    }
  }
}

TEST(RotaryTablesTest, KeepsATableForEachRotationAndType) {
  CpuOps ops({.threads = 1});
  RotaryTables tables{TensorGroup(ops), {5, 2}};
  const Rotation slow = {.frequencies = {0.5, 0.25, 0.125}};
  const Rotation fast = {.frequencies = {2, 1}, .factor = 3};
  const auto data = [&](const Rotation& rotation, DType dtype) {
    const auto table = tables.Of(rotation, dtype);
    TESSERA_EXPECT_OK(table);
    return table->data();
  };
  const std::byte* const first = data(slow, DType::kF64);
  const std::byte* const second = data(fast, DType::kF64);
  const std::byte* const third = data(slow, DType::kBF16);
  EXPECT_EQ(data(slow, DType::kF64), first);
  EXPECT_EQ(data(fast, DType::kF64), second);
  EXPECT_EQ(data(slow, DType::kF32), third);
  TESSERA_ASSERT_OK_AND_ASSIGN(const ConstTensorView table,
                               tables.Of(fast, DType::kF64));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto values, table.AsSpan<double>());
  EXPECT_THAT(values, ElementsAre(3 * std::cos(10.0), 3 * std::cos(5.0),
                                  3 * std::sin(10.0), 3 * std::sin(5.0),
                                  3 * std::cos(4.0), 3 * std::cos(2.0),
                                  3 * std::sin(4.0), 3 * std::sin(2.0)));
}

TEST(AttentionTest, WrongOptionsAreRefused) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops);
  const SequenceLayout layout = *SequenceLayout::Contiguous(4, 1);
  const auto create = [&](const AttentionOptions& options,
                          const ContextGroup& context) {
    return Attention::Create(group, context, options).status();
  };
  EXPECT_THAT(create({.width = 4, .head_size = 3}, {group, layout}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("heads of 3 elements")));
  EXPECT_THAT(
      create({.width = -4, .head_size = 2}, {group, layout}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("width -4")));
  EXPECT_THAT(create({.width = 4, .heads = 3, .kv_heads = 2, .head_size = 2},
                     {group, layout}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("2 kv heads do not divide 3")));
  EXPECT_THAT(create({.width = 4, .head_size = 2},
                     {group, *SequenceLayout::Contiguous(4, 2)}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("laid out for 2 ranks")));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto first,
      Attention::Create(group, {group, layout}, {.width = 4, .head_size = 2}));
  EXPECT_THAT(create({.width = 4, .heads = 2, .head_size = 2},
                     {group, layout, first.core()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("make it of Attention::CoreOptions")));
  EXPECT_THAT(create({.width = 4, .head_size = 2},
                     {group, *SequenceLayout::Contiguous(5, 1), first.core()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("another layout")));
  TESSERA_EXPECT_OK(
      create({.width = 4, .head_size = 2}, {group, layout, first.core()}));
  TESSERA_EXPECT_OK(
      create({.width = 4, .head_size = 3, .rotary = {}}, {group, layout}));
}

}  // namespace
}  // namespace tessera::tensor_parallel
