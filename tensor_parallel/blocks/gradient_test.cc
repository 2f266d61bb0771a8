// Compares gradients of every layer and block with central differences of its
// own forward in float64: per element, and along random directions.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/blocks/testing/mesh_case.h"
#include "tensor_parallel/blocks/testing/subject.h"
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/layers/testing/layer_case.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tensor_parallel/random/philox.h"

namespace tessera::tensor_parallel {
namespace {

constexpr int64_t kSequences = 2;

struct Variable {
  std::string name;
  std::span<double> values;
  std::vector<double> gradient;
};

// A subject on one rank; evaluates the weighted sum of its outputs as a
// function of its input and weights.
class Problem {
 public:
  static absl::StatusOr<std::unique_ptr<Problem>> Create(
      SubjectKind kind, const SubjectOptions& options, int64_t length) {
    auto problem = std::make_unique<Problem>();
    TESSERA_RETURN_IF_ERROR(problem->Start(kind, options, length));
    return problem;
  }

  std::vector<Variable>& variables() { return variables_; }

  absl::StatusOr<double> Loss() {
    TESSERA_RETURN_IF_ERROR(
        subject_->Forward(kSequences, x_->view(), y_->view()));
    // The backward makes the subject ready for the next forward.
    TESSERA_RETURN_IF_ERROR(
        subject_->Backward(y_gradient_->view(), x_gradient_->view()));
    TESSERA_ASSIGN_OR_RETURN(const auto y, y_->view().AsSpan<double>());
    TESSERA_ASSIGN_OR_RETURN(const auto weights,
                             y_gradient_->view().AsSpan<double>());
    double loss = 0;
    for (size_t i = 0; i < y.size(); ++i) loss += y[i] * weights[i];
    return loss;
  }

 private:
  absl::Status Start(SubjectKind kind, const SubjectOptions& options,
                     int64_t length) {
    const SequenceLayout layout = *SequenceLayout::Contiguous(length, 1);
    TESSERA_ASSIGN_OR_RETURN(
        subject_, MakeSubject(kind, TensorGroup(ops_),
                              {TensorGroup(ops_), layout}, options, pool_));
    const int64_t tokens = kSequences * length;
    const int64_t in[] = {tokens, options.width};
    const int64_t out[] = {tokens, subject_->out_width()};
    TESSERA_ASSIGN_OR_RETURN(x_, RandomTensor(DType::kF64, in, 1));
    TESSERA_ASSIGN_OR_RETURN(x_gradient_, Tensor::Create(DType::kF64, in));
    TESSERA_ASSIGN_OR_RETURN(y_, Tensor::Create(DType::kF64, out));
    TESSERA_ASSIGN_OR_RETURN(y_gradient_, RandomTensor(DType::kF64, out, 2));
    std::vector<Parameter*> parameters;
    subject_->AppendParameters(parameters);
    TESSERA_RETURN_IF_ERROR(FillWeights(ops_, parameters, DType::kF64));
    return KeepGradients(parameters);
  }

  absl::Status KeepGradients(const std::vector<Parameter*>& parameters) {
    TESSERA_RETURN_IF_ERROR(Loss().status());
    TESSERA_RETURN_IF_ERROR(subject_->FinishGradients());
    TESSERA_RETURN_IF_ERROR(Keep("x", x_->view(), x_gradient_->view()));
    for (Parameter* p : parameters) {
      TESSERA_RETURN_IF_ERROR(Keep(p->name(), p->value(), p->gradient()));
    }
    return absl::OkStatus();
  }

  absl::Status Keep(std::string name, TensorView value,
                    ConstTensorView gradient) {
    TESSERA_ASSIGN_OR_RETURN(const std::span<double> values,
                             value.AsSpan<double>());
    TESSERA_ASSIGN_OR_RETURN(std::vector<double> kept, ValuesOf(gradient));
    variables_.push_back({std::move(name), values, std::move(kept)});
    return absl::OkStatus();
  }

  CpuOps ops_{{.threads = 1}};
  TensorPool pool_{HostMemory()};
  std::unique_ptr<Subject> subject_;
  std::optional<Tensor> x_, x_gradient_, y_, y_gradient_;
  std::vector<Variable> variables_;
};

// The derivative along `direction` (one number per value), by a fourth-order
// difference.
absl::StatusOr<double> Difference(Problem& problem, std::span<double> values,
                                  const std::vector<double>& direction) {
  constexpr double kStep = 1e-3;
  const std::vector<double> start(values.begin(), values.end());
  const auto loss_at = [&](double t) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = start[i] + t * direction[i];
    }
    absl::StatusOr<double> loss = problem.Loss();
    std::copy(start.begin(), start.end(), values.begin());
    return loss;
  };
  TESSERA_ASSIGN_OR_RETURN(const double a, loss_at(-2 * kStep));
  TESSERA_ASSIGN_OR_RETURN(const double b, loss_at(-kStep));
  TESSERA_ASSIGN_OR_RETURN(const double c, loss_at(kStep));
  TESSERA_ASSIGN_OR_RETURN(const double d, loss_at(2 * kStep));
  return (a - 8 * b + 8 * c - d) / (12 * kStep);
}

double Largest(const std::vector<double>& values) {
  double largest = 0;
  for (const double x : values) largest = std::max(largest, std::abs(x));
  return largest;
}

absl::Status CheckNear(const std::string& what, double difference,
                       double gradient, double scale) {
  if (std::abs(difference - gradient) <= 1e-7 * scale) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": the gradient is ", gradient,
                                          ", the difference ", difference));
}

absl::Status CheckEveryElement(Problem& problem) {
  for (Variable& variable : problem.variables()) {
    const double scale = std::max(1.0, Largest(variable.gradient));
    for (size_t i = 0; i < variable.values.size(); ++i) {
      std::vector<double> direction(variable.values.size());
      direction[i] = 1;
      TESSERA_ASSIGN_OR_RETURN(const double difference,
                               Difference(problem, variable.values, direction));
      TESSERA_RETURN_IF_ERROR(
          CheckNear(absl::StrCat(variable.name, "[", i, "]"), difference,
                    variable.gradient[i], scale));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDirections(Problem& problem, int directions) {
  for (Variable& variable : problem.variables()) {
    for (int n = 0; n < directions; ++n) {
      std::vector<double> direction(variable.values.size());
      Philox({.seed = 3, .stream = static_cast<uint64_t>(n)})
          .FillNormal(0, std::span(direction));
      double length = 0, want = 0;
      for (const double x : direction) length += x * x;
      for (size_t i = 0; i < direction.size(); ++i) {
        direction[i] /= std::sqrt(length);
        want += direction[i] * variable.gradient[i];
      }
      TESSERA_ASSIGN_OR_RETURN(const double difference,
                               Difference(problem, variable.values, direction));
      TESSERA_RETURN_IF_ERROR(CheckNear(
          absl::StrCat(variable.name, " along direction ", n), difference, want,
          std::max(1.0, Largest(variable.gradient))));
    }
  }
  return absl::OkStatus();
}

class GradientTest : public ::testing::TestWithParam<SubjectKind> {};

TEST_P(GradientTest, EveryElementIsThatOfCentralDifferences) {
  // With a width of 3 a token of the mixture's block is so near to a change of
  // experts that a difference crosses it.
  SubjectOptions tiny = {.width = GetParam() == SubjectKind::kMoeBlock ? 4 : 3,
                         .hidden = 2,
                         .head_size = 2,
                         .vocabulary = 4,
                         .heads = 2,
                         .kv_heads = 1};
  for (const bool like_gpt_oss : {false, true}) {
    tiny.like_gpt_oss = like_gpt_oss;
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Problem> problem,
                                 Problem::Create(GetParam(), tiny, 3));
    TESSERA_EXPECT_OK(CheckEveryElement(*problem));
  }
}

TEST_P(GradientTest, RandomDirectionsAreThoseOfCentralDifferences) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
    const SubjectOptions options = {
        .qk_norm = recompute == Recompute::kFull,
        .window = recompute == Recompute::kFull ? 3 : 0,
        .dropout = recompute == Recompute::kFull ? 0.3 : 0,
        .score = recompute == Recompute::kFull ? RouterScore::kSigmoid
                                               : RouterScore::kSoftmax,
        .like_gpt_oss = recompute == Recompute::kNone,
        .recompute = recompute};
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Problem> problem,
                                 Problem::Create(GetParam(), options, 7));
    TESSERA_EXPECT_OK(CheckDirections(*problem, 5));
  }
}

TEST(MoeGradientTest, PaddedRowsWithDroppedTokens) {
  const SubjectOptions options = {
      .capacity = 0.6, .padded = true, .like_gpt_oss = true, .lora_rank = 3};
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Problem> problem,
      Problem::Create(SubjectKind::kMoeMlp, options, 7));
  TESSERA_EXPECT_OK(CheckDirections(*problem, 5));
}

class AdapterGradientTest : public ::testing::TestWithParam<SubjectKind> {};

TEST_P(AdapterGradientTest, RandomDirectionsAreThoseOfCentralDifferences) {
  for (const RouterScore score :
       {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<Problem> problem,
        Problem::Create(GetParam(), {.score = score, .lora_rank = 3}, 7));
    TESSERA_EXPECT_OK(CheckDirections(*problem, 5));
  }
}

INSTANTIATE_TEST_SUITE_P(AllKinds, AdapterGradientTest,
                         ::testing::Values(SubjectKind::kGatedMlp,
                                           SubjectKind::kMoeMlp,
                                           SubjectKind::kMoeBlock,
                                           SubjectKind::kLatentAttention));

INSTANTIATE_TEST_SUITE_P(
    AllKinds, GradientTest,
    ::testing::Values(SubjectKind::kColumnParallelLinear,
                      SubjectKind::kRowParallelLinear, SubjectKind::kRmsNorm,
                      SubjectKind::kEmbedding, SubjectKind::kGatedMlp,
                      SubjectKind::kAttention, SubjectKind::kTransformerBlock,
                      SubjectKind::kOutputHead, SubjectKind::kMoeMlp,
                      SubjectKind::kMoeBlock, SubjectKind::kLatentAttention,
                      SubjectKind::kLatentBlock));

}  // namespace
}  // namespace tessera::tensor_parallel
