// The parameters of a block: names, places, and external memory.
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/blocks/testing/block_flight.h"
#include "tensor_parallel/blocks/testing/mesh_case.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

namespace tessera::tensor_parallel {
namespace {

using namespace block_flight;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Each element of each parameter belongs to the primary rows of exactly one
// rank, and the ranks agree on the whole shape.
absl::StatusOr<std::vector<Parameter::Spec>> SpecsOf(const TensorGroup& group) {
  auto options = OptionsOf(DType::kF32, Recompute::kNone);
  options.mlp_bias = true;
  options.attention.qkv_bias = true;
  options.attention.output_bias = true;
  options.attention.qk_norm = true;
  TESSERA_ASSIGN_OR_RETURN(TransformerBlock block, MakeBlock(group, options));
  std::vector<Parameter*> parameters;
  block.AppendParameters("b", parameters);
  std::vector<Parameter::Spec> specs;
  for (Parameter* p : parameters) {
    specs.push_back({.name = p->name(),
                     .shape = p->shape(),
                     .rows = p->rows(),
                     .columns = p->columns(),
                     .replicated = p->replicated()});
  }
  return specs;
}

// Counts how often each element belongs to primary rows.
void CountPrimary(const Parameter::Spec& spec, std::vector<int>& counts) {
  const int64_t width = spec.shape.size() == 2 ? spec.shape[1] : 1;
  for (const ParameterRows& rows : spec.rows) {
    if (spec.replicated) {
      EXPECT_EQ(rows.range.size(), spec.shape[0]);
    }
    if (!rows.primary) continue;
    for (int64_t r = rows.range.begin; r < rows.range.end; ++r) {
      for (int64_t i = spec.columns.begin; i < spec.columns.end; ++i) {
        ++counts[static_cast<size_t>(r * width + i)];
      }
    }
  }
}

TEST(BlockParametersTest, PrimaryRowsCoverEveryParameterOnce) {
  for (const int64_t ranks : {1, 2, 4, 8}) {
    std::vector<std::vector<Parameter::Spec>> specs(static_cast<size_t>(ranks));
    EXPECT_THAT(
        RunMesh(
            {.tp = ranks, .sequence_parallel = true},
            [&](const TensorGroup& tensor, const TensorGroup&) -> absl::Status {
              TESSERA_ASSIGN_OR_RETURN(
                  specs[static_cast<size_t>(tensor.rank())], SpecsOf(tensor));
              return absl::OkStatus();
            }),
        Each(IsOk()));
    ASSERT_EQ(specs[0].size(), 12u);
    for (size_t p = 0; p < specs[0].size(); ++p) {
      size_t elements = 1;
      for (const int64_t size : specs[0][p].shape) {
        elements *= static_cast<size_t>(size);
      }
      std::vector<int> counts(elements);
      for (const auto& rank : specs) {
        EXPECT_EQ(rank[p].shape, specs[0][p].shape);
        EXPECT_EQ(rank[p].replicated, specs[0][p].replicated);
        CountPrimary(rank[p], counts);
      }
      EXPECT_THAT(counts, Each(1)) << specs[0][p].name;
    }
  }
}

TEST(BlockParametersTest, NamesItsParameters) {
  CpuOps ops({.threads = 1});
  TESSERA_ASSERT_OK_AND_ASSIGN(
      TransformerBlock block,
      MakeBlock(TensorGroup(ops), OptionsOf(DType::kF32, Recompute::kNone)));
  std::vector<Parameter*> parameters;
  block.AppendParameters("layers.3", parameters);
  std::vector<std::string> names;
  for (Parameter* p : parameters) names.push_back(p->name());
  EXPECT_THAT(names, ElementsAre("layers.3.attention_norm.weight",
                                 "layers.3.attention.qkv.weight",
                                 "layers.3.attention.output.weight",
                                 "layers.3.mlp_norm.weight",
                                 "layers.3.mlp.gate_up.weight",
                                 "layers.3.mlp.down.weight"));
}

TEST(BlockParametersTest, ReleasedParametersAreNamed) {
  std::deque<Tensor> kept;  // External memory that the block is bound to.
  CpuOps ops({.threads = 1});
  const auto options = OptionsOf(DType::kF32, Recompute::kNone);
  TESSERA_ASSERT_OK_AND_ASSIGN(TransformerBlock block,
                               MakeBlock(TensorGroup(ops), options));
  std::vector<Parameter*> parameters;
  block.AppendParameters("layers.7", parameters);
  TensorPool pool(HostMemory());
  for (Parameter* p : parameters) {
    Flight flight(pool, options, kTokens, 1);
    TESSERA_ASSERT_OK_AND_ASSIGN(Tensor elsewhere,
                                 CastTo(DType::kF32, p->value()));
    p->Release();
    EXPECT_THAT(flight.Forward(block),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr(absl::StrCat("\"", p->name(),
                                                "\" is "
                                                "released"))));
    flight.activations.Clear();
    TESSERA_ASSERT_OK(p->Bind(elsewhere.view()));
    TESSERA_ASSERT_OK(flight.Forward(block));
    p->Release();
    EXPECT_THAT(
        flight.BackwardInput(block),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(p->name())));
    flight.activations.Clear();
    TESSERA_ASSERT_OK_AND_ASSIGN(Tensor own,
                                 CastTo(DType::kF32, elsewhere.view()));
    TESSERA_ASSERT_OK(p->Bind(own.view()));
    TESSERA_ASSERT_OK(flight.Forward(block));
    TESSERA_ASSERT_OK(flight.BackwardInput(block));
    // Gradients of weights do not need the values.
    p->Release();
    p->ReleaseGradient();
    EXPECT_THAT(block.BackwardWeight(flight.activations),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("the gradient of")));
    flight.activations.Clear();
    kept.push_back(std::move(own));
    kept.push_back(*CastTo(DType::kF32, elsewhere.view()));
    TESSERA_ASSERT_OK(p->Bind(kept[kept.size() - 2].view()));
    TESSERA_ASSERT_OK(p->BindGradient(kept.back().view()));
  }
}

// For every layer of a block.
TEST(BlockParametersTest, HaveNoMemoryWhereTheGroupSaysSo) {
  CpuOps ops({.threads = 1});
  auto options = OptionsOf(DType::kF32, Recompute::kNone);
  options.mlp_bias = true;
  options.attention.qkv_bias = true;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      TransformerBlock block,
      MakeBlock(TensorGroup(ops).WithoutWeightMemory(), options));
  std::vector<Parameter*> parameters;
  block.AppendParameters("b", parameters);
  EXPECT_GT(parameters.size(), 6u);
  for (const Parameter* p : parameters) {
    EXPECT_FALSE(p->has_value()) << p->name();
    EXPECT_FALSE(p->has_gradient()) << p->name();
  }
  TensorPool pool(HostMemory());
  Flight flight(pool, options, kTokens, 1);
  EXPECT_THAT(flight.Forward(block),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("is released")));
}

// Memory of a partitioned optimizer: values come and go, gradients stay.
class BoundMemory {
 public:
  static absl::StatusOr<BoundMemory> CopyOf(
      const std::vector<Parameter*>& parameters) {
    BoundMemory memory;
    for (Parameter* p : parameters) {
      TESSERA_ASSIGN_OR_RETURN(Tensor value, CastTo(p->dtype(), p->value()));
      TESSERA_ASSIGN_OR_RETURN(Tensor gradient,
                               CastTo(p->gradient_dtype(), p->gradient()));
      memory.values_.push_back(std::move(value));
      memory.gradients_.push_back(std::move(gradient));
      TESSERA_RETURN_IF_ERROR(p->BindGradient(memory.gradients_.back().view()));
      p->Release();
    }
    return memory;
  }

  // Runs the body of a pass while the values are present.
  absl::Status During(const std::vector<Parameter*>& parameters,
                      const std::function<absl::Status()>& pass) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      TESSERA_RETURN_IF_ERROR(parameters[i]->Bind(values_[i].view()));
    }
    const absl::Status status = pass();
    for (Parameter* p : parameters) p->Release();
    return status;
  }

 private:
  std::vector<Tensor> values_, gradients_;
};

TEST(BlockParametersTest, RunsOnBoundMemoryToTheSameBits) {
  CpuOps ops({.threads = 1});
  const auto options = OptionsOf(DType::kBF16, Recompute::kSelective);
  TensorPool pool(HostMemory());
  TESSERA_ASSERT_OK_AND_ASSIGN(TransformerBlock own,
                               MakeBlock(TensorGroup(ops), options));
  TESSERA_ASSERT_OK_AND_ASSIGN(TransformerBlock block,
                               MakeBlock(TensorGroup(ops), options));
  std::vector<Parameter*> own_parameters, parameters;
  own.AppendParameters("", own_parameters);
  block.AppendParameters("", parameters);
  TESSERA_ASSERT_OK(FillWeights(ops, own_parameters, DType::kBF16));
  TESSERA_ASSERT_OK(FillWeights(ops, parameters, DType::kBF16));
  TESSERA_ASSERT_OK_AND_ASSIGN(BoundMemory memory,
                               BoundMemory::CopyOf(parameters));
  Flight a(pool, options, kTokens, 4), b(pool, options, kTokens, 4);
  TESSERA_ASSERT_OK(a.Forward(own));
  TESSERA_ASSERT_OK(a.BackwardInput(own));
  TESSERA_ASSERT_OK(own.BackwardWeight(a.activations));
  TESSERA_ASSERT_OK(
      memory.During(parameters, [&] { return b.Forward(block); }));
  TESSERA_ASSERT_OK(
      memory.During(parameters, [&] { return b.BackwardInput(block); }));
  TESSERA_ASSERT_OK(block.BackwardWeight(b.activations));
  TESSERA_EXPECT_OK(
      ExpectSameBits("x gradient", b.gradient.view(), a.gradient.view()));
  for (size_t i = 0; i < parameters.size(); ++i) {
    TESSERA_EXPECT_OK(ExpectSameBits(parameters[i]->name(),
                                     parameters[i]->gradient(),
                                     own_parameters[i]->gradient()));
  }
}

}  // namespace
}  // namespace tessera::tensor_parallel
