// Tests FirstWeights in a ShardedModel: for any part of a tensor, type, number
// of ranks and number of threads, each element equals the formula, which is
// computed element by element with the C library.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/dtype/dtype.h"
#include "base/fnv1a.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tensor_parallel/random/philox.h"
#include "tools/train/model/sharded_model.h"

namespace tessera::train {
namespace {

using collectives::Communicator;
using tensor_parallel::Parameter;

constexpr uint64_t kSeed = 7;
constexpr double kDeviation = 0.02;

double Expected(const Parameter& parameter, int64_t row, int64_t column) {
  std::string name = parameter.name();
  if (name == "head.norm.weight") return 1;
  if (name == "layers.0.mlp.down.lora_b") return 0;
  const int64_t width =
      parameter.shape().size() == 1 ? 1 : parameter.shape()[1];
  const double deviation = name == "layers.0.mlp.down.lora_a"
                               ? 1 / std::sqrt(3 * static_cast<double>(width))
                               : kDeviation;
  if (name == "head.output.weight") name = "embedding.weight";
  const tensor_parallel::Philox random({.seed = kSeed, .stream = Fnv1a(name)});
  return random.Normal(static_cast<uint64_t>(row * width + column)) * deviation;
}

// The numbers of the elements held, in row-major order.
std::vector<double> ExpectedOf(const Parameter& parameter) {
  std::vector<double> values;
  for (const tensor_parallel::ParameterRows& rows : parameter.rows()) {
    for (int64_t row = rows.range.begin; row < rows.range.end; ++row) {
      for (int64_t column = parameter.columns().begin;
           column < parameter.columns().end; ++column) {
        values.push_back(Expected(parameter, row, column));
      }
    }
  }
  return values;
}

// Rows of odd sizes, columns that are not all held, several parts of 4096, and
// nothing at all.
std::vector<Parameter::Spec> Specs(DType dtype) {
  std::vector<Parameter::Spec> specs = {{.name = "embedding.weight",
                                         .shape = {301, 33},
                                         .rows = {{{100, 300}}},
                                         .columns = {0, 33}},
                                        {.name = "layers.0.mlp.down.weight",
                                         .shape = {64, 701},
                                         .rows = {{{1, 22}}, {{40, 63}}},
                                         .columns = {350, 701}},
                                        {.name = "layers.0.mlp.down.lora_a",
                                         .shape = {3, 701},
                                         .rows = {{{0, 3}}},
                                         .columns = {0, 701}},
                                        {.name = "layers.0.mlp.down.lora_b",
                                         .shape = {64, 3},
                                         .rows = {{{0, 64}}},
                                         .columns = {0, 3}},
                                        {.name = "layers.0.attention.qkv.bias",
                                         .shape = {5},
                                         .rows = {{{3, 4}}},
                                         .columns = {0, 1}},
                                        {.name = "head.norm.weight",
                                         .shape = {33},
                                         .rows = {{{0, 33}}},
                                         .columns = {0, 1}},
                                        {.name = "layers.0.mlp.none.weight",
                                         .shape = {4, 4},
                                         .rows = {{{2, 2}}},
                                         .columns = {0, 4}},
                                        {.name = "head.output.weight",
                                         .shape = {301, 33},
                                         .rows = {{{0, 301}}},
                                         .columns = {0, 33}}};
  for (Parameter::Spec& spec : specs) spec.dtype = dtype;
  return specs;
}

// The bytes of this rank's values, and of their master weights.
absl::Status CheckOwn(ShardedModel& model, const Parameter& parameter,
                      zero3::ParameterId id) {
  zero3::ShardedState& state = model.state();
  const zero3::Extent extent = state.layout().ExtentOf(state.rank(), id);
  if (extent.size() == 0) return absl::OkStatus();
  const std::vector<double> all = ExpectedOf(parameter);
  const auto expect = [&](std::span<const std::byte> actual,
                          std::span<const std::byte> expected) {
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), actual.begin()))
        << parameter.name();
  };
  const std::span<const double> own = std::span(all).subspan(
      static_cast<size_t>(extent.begin), static_cast<size_t>(extent.size()));
  std::vector<std::byte> rounded(
      own.size() * static_cast<size_t>(SizeInBytes(parameter.dtype())));
  TESSERA_RETURN_IF_ERROR(
      Convert(DType::kF64, std::as_bytes(own), parameter.dtype(), rounded));
  TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan values,
                           state.weights().OpenOwn(id));
  expect({values.data(), rounded.size()}, rounded);
  TESSERA_RETURN_IF_ERROR(state.weights().CloseOwn(id, /*changed=*/false));
  TESSERA_ASSIGN_OR_RETURN(
      const std::span<std::byte> master,
      state.optimizer().Open(zero3::StatePart::kMaster, id));
  if (!master.empty()) {
    std::vector<std::byte> exact(own.size() * sizeof(float));
    TESSERA_RETURN_IF_ERROR(
        Convert(parameter.dtype(), rounded, DType::kF32, exact));
    expect(master, exact);
  }
  return state.optimizer().Close(zero3::StatePart::kMaster, id,
                                 /*changed=*/false);
}

absl::Status DrawAndCheck(Communicator& group, DType dtype, int stage,
                          int threads) {
  tensor_parallel::CpuOps ops({.threads = 1});
  const tensor_parallel::TensorGroup tensor =
      tensor_parallel::TensorGroup(ops).WithoutWeightMemory();
  std::vector<std::unique_ptr<Parameter>> parameters;
  ParameterWindow window;
  for (const Parameter::Spec& spec : Specs(dtype)) {
    TESSERA_ASSIGN_OR_RETURN(Parameter parameter,
                             Parameter::Create(tensor, spec));
    parameters.push_back(std::make_unique<Parameter>(std::move(parameter)));
    window.push_back(parameters.back().get());
  }
  const FirstWeights first(
      {.seed = kSeed, .deviation = kDeviation, .tied_embeddings = true});
  TESSERA_ASSIGN_OR_RETURN(
      const auto model,
      ShardedModel::Create(
          std::span(&window, 1), {.stage = stage, .fill_threads = threads},
          {.dense = {.shard = &group}},
          [&](const Parameter& parameter, int64_t begin, TensorView elements) {
            return first.Draw(parameter, begin, elements);
          }));
  for (size_t i = 0; i < parameters.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(CheckOwn(
        *model, *parameters[i], zero3::ParameterId(static_cast<int64_t>(i))));
  }
  return absl::OkStatus();
}

TEST(FirstWeightsTest, MatchFormulaForAnyRanksTypesAndThreads) {
  for (const DType dtype :
       {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int stage : {0, 3}) {
      for (const int64_t ranks : {1, 2, 3}) {
        for (const int threads : {1, 2, 3, 7}) {
          SCOPED_TRACE(absl::StrCat(DTypeName(dtype), " stage ", stage, ", ",
                                    ranks, " ranks, ", threads, " threads"));
          for (const absl::Status& status :
               collectives::RunRanks(ranks, [&](Communicator& group) {
                 return DrawAndCheck(group, dtype, stage, threads);
               })) {
            TESSERA_EXPECT_OK(status);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::train
