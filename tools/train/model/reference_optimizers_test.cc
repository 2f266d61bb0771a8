// Tests Adafactor in a ShardedModel against torch.optim.Adafactor
// (testdata/make_torch_adafactor.py) and Shampoo against a reference that
// computes eigenvalues (testdata/make_numpy_shampoo.py), for every ZeRO stage
// and layout.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "base/dtype/dtype.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/tensor_view.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/model_files/model_config.h"
#include "tools/train/model/sharded_model.h"
#include "zero3/layout/state_layout.h"
#include "zero3/state/state_options.h"

namespace tessera::train {
namespace {

using collectives::Communicator;
using tensor_parallel::Parameter;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

model_files::ModelConfig Model() {
  model_files::ModelConfig model = {
      .hidden = 5, .heads = 2, .kv_heads = 1, .head_size = 3};
  model.mixture.experts = 3;
  return model;
}

double Weight(int64_t index) {
  return 0.5 * std::sin(0.37 * static_cast<double>(index) + 1) + 0.1;
}

double Gradient(const Parameter& parameter, int64_t index, int64_t step) {
  if (parameter.name() == "embedding.weight" &&
      index / parameter.shape()[1] % 4 == 3) {
    return 0;
  }
  return std::sin(1.7 * static_cast<double>(index) +
                  0.3 * static_cast<double>(step)) *
         std::pow(10.0, -static_cast<double>(index % 6));
}

void Set(TensorView view, int64_t index, double value) {
  if (view.dtype() == DType::kF64) {
    reinterpret_cast<double*>(view.data())[index] = value;
  } else {
    reinterpret_cast<float*>(view.data())[index] = static_cast<float>(value);
  }
}

double Get(const TensorView& view, int64_t index) {
  return view.dtype() == DType::kF64
             ? reinterpret_cast<const double*>(view.data())[index]
             : static_cast<double>(
                   reinterpret_cast<const float*>(view.data())[index]);
}

// Trains the tensors of a case on the ranks of a group.
class Training {
 public:
  Training(Communicator& group, const nlohmann::json& expected)
      : group_(group), expected_(expected) {}

  absl::Status Create(const zero3::ShardedStateOptions& options, DType dtype) {
    const tensor_parallel::TensorGroup tensor =
        tensor_parallel::TensorGroup(ops_).WithoutWeightMemory();
    for (const nlohmann::json& one : expected_["tensors"]) {
      const auto rows = one["rows"].get<int64_t>();
      const auto columns = one["columns"].get<int64_t>();
      const bool of_experts =
          absl::StrContains(one["name"].get<std::string>(), ".experts.");
      std::vector<int64_t> shape = {rows};
      if (columns > 0) shape.push_back(columns);
      TESSERA_ASSIGN_OR_RETURN(
          Parameter parameter,
          Parameter::Create(
              tensor, {.name = one["name"].get<std::string>(),
                       .shape = std::move(shape),
                       .rows = {{{0, rows}}},
                       .columns = {0, std::max<int64_t>(columns, 1)},
                       .matrices = of_experts ? Model().mixture.experts : 1,
                       .dtype = dtype}));
      parameters_.push_back(std::make_unique<Parameter>(std::move(parameter)));
      windows_[0].push_back(parameters_.back().get());
    }
    const auto first = [](const Parameter&, int64_t begin,
                          TensorView elements) {
      for (int64_t i = 0; i < elements.element_count(); ++i) {
        Set(elements, i, Weight(begin + i));
      }
      return absl::OkStatus();
    };
    TESSERA_ASSIGN_OR_RETURN(
        model_,
        ShardedModel::Create(windows_, options, {.dense = {.shard = &group_}},
                             first, {}, {.model = Model(), .ops = &ops_}));
    return absl::OkStatus();
  }

  // One of the ranks has the gradients, times `factor`.
  absl::Status Step(int64_t step, double factor = 1) {
    model_->BeginStep();
    TESSERA_RETURN_IF_ERROR(model_->UseGradients(0));
    for (const auto& parameter : parameters_) {
      if (step % group_.size() != group_.rank().value()) continue;
      const TensorView gradient = parameter->gradient();
      for (int64_t i = 0; i < gradient.element_count(); ++i) {
        Set(gradient, i, factor * Gradient(*parameter, i, step));
      }
    }
    TESSERA_RETURN_IF_ERROR(model_->Reduce(0));
    return model_->Step().status();
  }

  // The largest difference to torch.
  absl::StatusOr<double> Difference() {
    model_->BeginStep();
    TESSERA_RETURN_IF_ERROR(model_->StartGather(0));
    TESSERA_RETURN_IF_ERROR(model_->UseValues(0));
    double difference = 0;
    for (size_t p = 0; p < parameters_.size(); ++p) {
      const TensorView value = parameters_[p]->value();
      const nlohmann::json& weights = expected_["tensors"][p]["weights"];
      for (int64_t i = 0; i < value.element_count(); ++i) {
        const double wanted = weights[static_cast<size_t>(i)].get<double>();
        difference = std::max(difference, std::abs(Get(value, i) - wanted));
      }
    }
    TESSERA_RETURN_IF_ERROR(model_->Release(0));
    return difference;
  }

 private:
  Communicator& group_;
  const nlohmann::json& expected_;
  tensor_parallel::CpuOps ops_{{.threads = 1}};
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<ParameterWindow> windows_ = std::vector<ParameterWindow>(1);
  std::unique_ptr<ShardedModel> model_;
};

zero3::ShardedStateOptions OptionsOf(const nlohmann::json& expected) {
  zero3::ShardedStateOptions options;
  options.adamw.learning_rate = expected["learning_rate"].get<double>();
  options.adamw.weight_decay = expected["weight_decay"].get<double>();
  options.adamw.beta2 = 0.95;
  if (expected.contains("block")) {
    options.optimizer = zero3::OptimizerKind::kShampoo;
    options.shampoo = {.block = expected["block"].get<int64_t>(),
                       .every = expected["every"].get<int64_t>(),
                       .epsilon = expected["epsilon"].get<double>()};
    return options;
  }
  options.optimizer = zero3::OptimizerKind::kAdafactor;
  options.adafactor = {.beta2_decay = expected["beta2_decay"].get<double>(),
                       .epsilon2 = expected["epsilon2"].get<double>(),
                       .threshold = expected["threshold"].get<double>()};
  return options;
}

void ExpectWeights(const nlohmann::json& expected, int64_t steps, int64_t ranks,
                   const zero3::ShardedStateOptions& options, DType dtype,
                   double tolerance) {
  SCOPED_TRACE(::testing::Message()
               << "learning rate " << expected["learning_rate"] << ", " << ranks
               << " ranks, stage " << options.stage << ", "
               << DTypeName(dtype));
  EXPECT_THAT(collectives::RunRanks(
                  ranks,
                  [&](Communicator& group) -> absl::Status {
                    Training training(group, expected);
                    TESSERA_RETURN_IF_ERROR(training.Create(options, dtype));
                    for (int64_t step = 0; step < steps; ++step) {
                      TESSERA_RETURN_IF_ERROR(training.Step(step));
                    }
                    TESSERA_ASSIGN_OR_RETURN(const double difference,
                                             training.Difference());
                    EXPECT_LT(difference, tolerance);
                    return absl::OkStatus();
                  }),
              Each(IsOk()));
}

void ExpectCases(const std::string& name, double f64, double f32) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string text,
      ReadFile("tools/train/model/testdata/" + name, 1 << 20));
  TESSERA_ASSERT_OK_AND_ASSIGN(const nlohmann::json all, ParseJson(text, {}));
  const auto steps = all["steps"].get<int64_t>();
  for (const nlohmann::json& expected : all["cases"]) {
    zero3::ShardedStateOptions options = OptionsOf(expected);
    for (const DType dtype : {DType::kF64, DType::kF32}) {
      for (const int64_t ranks : {1, 3}) {
        for (options.stage = 0; options.stage <= 3; ++options.stage) {
          options.layout = options.stage == 2 ? zero3::LayoutKind::kBalanced
                                              : zero3::LayoutKind::kChunks;
          ExpectWeights(expected, steps, ranks, options, dtype,
                        dtype == DType::kF64 ? f64 : f32);
        }
      }
    }
  }
}

TEST(AdafactorTest, EqualsTorch) {
  ExpectCases("torch_adafactor.json", /*f64=*/1e-14, /*f32=*/5e-6);
}

TEST(ShampooTest, EqualsReferenceWithEigenvalues) {
  ExpectCases("numpy_shampoo.json", /*f64=*/2e-11, /*f32=*/1e-4);
}

// The owner aborts the others, which get the error at the latest in the next
// step.
TEST(ShampooTest, NamesNonFiniteRoots) {
  const nlohmann::json expected = {
      {"tensors",
       {{{"name", "embedding.weight"}, {"rows", 4}, {"columns", 5}},
        {{"name", "layers.0.attention.output.weight"},
         {"rows", 5},
         {"columns", 6}}}}};
  const zero3::ShardedStateOptions options = {
      .optimizer = zero3::OptimizerKind::kShampoo};
  const std::vector<absl::Status> results =
      collectives::RunRanks(2, [&](Communicator& group) -> absl::Status {
        Training training(group, expected);
        TESSERA_RETURN_IF_ERROR(training.Create(options, DType::kF32));
        TESSERA_RETURN_IF_ERROR(training.Step(/*step=*/0, /*factor=*/1e30));
        return training.Step(/*step=*/1);
      });
  EXPECT_THAT(results,
              Contains(StatusIs(
                  absl::StatusCode::kInternal,
                  HasSubstr("the inverse roots "
                            "\"layers.0.attention.output.weight.0.statistics\" "
                            "of [5, 6] are not finite"))));
  EXPECT_THAT(results, Each(Not(IsOk())));
}

}  // namespace
}  // namespace tessera::train
