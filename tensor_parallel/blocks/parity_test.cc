// Every layer and block gives the same outputs and gradients on every mesh as
// on one rank. All recompute modes, and both halves of the backward together or
// apart, agree bit for bit.
#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/blocks/mesh_case.h"
#include "tensor_parallel/blocks/subject.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tensor_parallel/layers/layer_case.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::Each;

// A whole tensor, or one rank's part.
struct Results {
  Tensor y;
  Tensor x_gradient;
  std::vector<Tensor> gradients;  // By parameter.
};

struct Whole {
  Tensor x;
  Tensor y_gradient;
  Results results;
};

absl::StatusOr<Tensor> CopyOf(ConstTensorView x) {
  return CastTo(x.dtype(), x);
}

// Runs twice, which reveals state left over from a pass.
absl::Status RunPasses(Subject& subject, int64_t sequences, ConstTensorView x,
                       ConstTensorView y_gradient, bool apart, Results& r) {
  std::vector<Parameter*> parameters;
  subject.AppendParameters(parameters);
  for (int i = 0; i < 2; ++i) {
    for (Parameter* p : parameters) TESSERA_RETURN_IF_ERROR(p->ZeroGradient());
    TESSERA_RETURN_IF_ERROR(subject.Forward(sequences, x, r.y.view()));
    if (apart) {
      TESSERA_RETURN_IF_ERROR(
          subject.BackwardInput(y_gradient, r.x_gradient.view()));
      TESSERA_RETURN_IF_ERROR(subject.BackwardWeight());
    } else {
      TESSERA_RETURN_IF_ERROR(
          subject.Backward(y_gradient, r.x_gradient.view()));
    }
    TESSERA_RETURN_IF_ERROR(subject.FinishGradients());
  }
  for (Parameter* p : parameters) {
    TESSERA_ASSIGN_OR_RETURN(Tensor gradient, CopyOf(p->gradient()));
    r.gradients.push_back(std::move(gradient));
  }
  return absl::OkStatus();
}

absl::StatusOr<Results> Run(Subject& subject, const MeshCase& c,
                            ConstTensorView x, ConstTensorView y_gradient,
                            bool apart) {
  TESSERA_ASSIGN_OR_RETURN(
      Tensor y, Tensor::Create(subject.out_dtype(),
                               {{y_gradient.shape()[0], subject.out_width()}}));
  TESSERA_ASSIGN_OR_RETURN(Tensor x_gradient, CopyOf(x));
  Results results = {std::move(y), std::move(x_gradient), {}};
  TESSERA_RETURN_IF_ERROR(
      RunPasses(subject, c.sequences, x, y_gradient, apart, results));
  return results;
}

// Runs on one rank in float64, with values rounded to the case's type.
absl::StatusOr<Whole> RunWhole(SubjectKind kind, const MeshCase& c,
                               SubjectOptions options) {
  CpuOps ops({.threads = 1});
  TensorPool pool;
  options.dtype = DType::kF64;
  options.sequence_parallel = false;
  const SequenceLayout layout = *SequenceLayout::Contiguous(c.length, 1);
  TESSERA_ASSIGN_OR_RETURN(
      const std::unique_ptr<Subject> subject,
      MakeSubject(kind, TensorGroup(ops), {TensorGroup(ops), layout}, options,
                  pool));
  std::vector<Parameter*> parameters;
  subject->AppendParameters(parameters);
  TESSERA_RETURN_IF_ERROR(FillWeights(parameters, c.dtype));
  const int64_t tokens = c.sequences * c.length;
  TESSERA_ASSIGN_OR_RETURN(
      Tensor x,
      RandomRounded(DType::kF64, c.dtype, {{tokens, options.width}}, 1));
  TESSERA_ASSIGN_OR_RETURN(
      Tensor gradient,
      RandomRounded(DType::kF64, c.dtype, {{tokens, subject->out_width()}}, 2));
  TESSERA_ASSIGN_OR_RETURN(Results results,
                           Run(*subject, c, x.view(), gradient.view(), true));
  return Whole{std::move(x), std::move(gradient), std::move(results)};
}

struct Mine {
  std::vector<IndexRange> rows;
  std::vector<IndexRange> out_rows;
  Tensor x;
  Tensor y_gradient;
};

absl::StatusOr<Mine> TakeMine(const MeshCase& c, const Whole& whole,
                              const Subject& subject, int64_t tensor_rank,
                              int64_t context_rank) {
  std::vector<IndexRange> rows = RowsOf(c, tensor_rank, context_rank, false);
  std::vector<IndexRange> out_rows =
      RowsOf(c, tensor_rank, context_rank, subject.whole_output());
  TESSERA_ASSIGN_OR_RETURN(Tensor x, Take(whole.x.view(), 0, rows));
  TESSERA_ASSIGN_OR_RETURN(Tensor gradient,
                           Take(whole.y_gradient.view(), 0, out_rows));
  TESSERA_ASSIGN_OR_RETURN(Tensor my_x, CastTo(c.dtype, x.view()));
  TESSERA_ASSIGN_OR_RETURN(Tensor my_gradient,
                           CastTo(subject.out_dtype(), gradient.view()));
  return Mine{std::move(rows), std::move(out_rows), std::move(my_x),
              std::move(my_gradient)};
}

absl::Status Compare(const MeshCase& c, const Mine& mine, Subject& subject,
                     const TensorGroup& context, const Results& got,
                     const Results& want) {
  TESSERA_ASSIGN_OR_RETURN(Tensor y, Take(want.y.view(), 0, mine.out_rows));
  TESSERA_RETURN_IF_ERROR(ExpectNearPart("y", got.y.view(), y.view(),
                                         want.y.view(), c.tolerance()));
  TESSERA_ASSIGN_OR_RETURN(Tensor dx,
                           Take(want.x_gradient.view(), 0, mine.rows));
  TESSERA_RETURN_IF_ERROR(ExpectNearPart("x gradient", got.x_gradient.view(),
                                         dx.view(), want.x_gradient.view(),
                                         c.tolerance()));
  std::vector<Parameter*> parameters;
  subject.AppendParameters(parameters);
  for (size_t i = 0; i < parameters.size(); ++i) {
    // Sums over all positions.
    TESSERA_ASSIGN_OR_RETURN(Tensor sum, CopyOf(got.gradients[i].view()));
    TESSERA_RETURN_IF_ERROR(context.SumOver(sum.view()));
    TESSERA_ASSIGN_OR_RETURN(Tensor part,
                             PartOf(*parameters[i], want.gradients[i].view()));
    TESSERA_RETURN_IF_ERROR(
        ExpectNearPart(parameters[i]->name(), sum.view(), part.view(),
                       want.gradients[i].view(), c.tolerance()));
  }
  return absl::OkStatus();
}

absl::Status ExpectSame(const Results& got, const Results& want) {
  TESSERA_RETURN_IF_ERROR(ExpectSameBits("y", got.y.view(), want.y.view()));
  TESSERA_RETURN_IF_ERROR(ExpectSameBits("x gradient", got.x_gradient.view(),
                                         want.x_gradient.view()));
  for (size_t i = 0; i < got.gradients.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(ExpectSameBits("a weight gradient",
                                           got.gradients[i].view(),
                                           want.gradients[i].view()));
  }
  return absl::OkStatus();
}

absl::Status CheckRank(SubjectKind kind, const MeshCase& c,
                       SubjectOptions options, const Whole& whole,
                       const TensorGroup& tensor, const TensorGroup& context) {
  TensorPool pool;
  std::vector<Results> first;
  for (const Recompute recompute :
       {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    for (const bool apart : {true, false}) {
      options.recompute = recompute;
      TESSERA_ASSIGN_OR_RETURN(
          const std::unique_ptr<Subject> subject,
          MakeSubject(kind, tensor, {context, c.layout()}, options, pool));
      std::vector<Parameter*> parameters;
      subject->AppendParameters(parameters);
      TESSERA_RETURN_IF_ERROR(FillWeights(parameters, c.dtype));
      TESSERA_ASSIGN_OR_RETURN(
          const Mine mine,
          TakeMine(c, whole, *subject, tensor.rank(), context.rank()));
      TESSERA_ASSIGN_OR_RETURN(Results got, Run(*subject, c, mine.x.view(),
                                                mine.y_gradient.view(), apart));
      if (first.empty()) {
        TESSERA_RETURN_IF_ERROR(
            Compare(c, mine, *subject, context, got, whole.results));
        first.push_back(std::move(got));
      } else {
        TESSERA_RETURN_IF_ERROR(ExpectSame(got, first[0]));
      }
    }
  }
  return absl::OkStatus();
}

using ParityCase = std::tuple<SubjectKind, MeshCase>;

class ParityTest : public ::testing::TestWithParam<ParityCase> {};

TEST_P(ParityTest, EveryMeshGivesWhatOneRankGives) {
  const auto& [kind, c] = GetParam();
  SubjectOptions options = {.dtype = c.dtype,
                            .sequence_parallel = c.sequence_parallel,
                            .overlap_chunks = c.zigzag ? 3 : 0,
                            // Its scale, 2, rounds nothing.
                            .dropout = c.zigzag ? 0.5 : 0};
  options.SetHeadsFor(c.tp);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Whole whole, RunWhole(kind, c, options));
  EXPECT_THAT(
      RunMesh(c,
              [&](const TensorGroup& tensor, const TensorGroup& context) {
                return CheckRank(kind, c, options, whole, tensor, context);
              }),
      Each(IsOk()));
}

INSTANTIATE_TEST_SUITE_P(
    AllCases, ParityTest,
    ::testing::Combine(::testing::Values(SubjectKind::kRmsNorm,
                                         SubjectKind::kEmbedding,
                                         SubjectKind::kGatedMlp,
                                         SubjectKind::kAttention,
                                         SubjectKind::kTransformerBlock,
                                         SubjectKind::kOutputHead),
                       ::testing::ValuesIn(AllMeshCases())));

}  // namespace
}  // namespace tessera::tensor_parallel
