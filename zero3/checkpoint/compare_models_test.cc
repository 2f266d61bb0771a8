#include "zero3/checkpoint/compare_models.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::zero3 {
namespace {

using offload::MomentFormat;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ModelParameters ModelOf(const std::vector<ParameterSpec>& specs) {
  ModelParameters::Builder builder;
  for (const ParameterSpec& spec : specs) builder.Add(spec);
  return *builder.Build();
}

CheckpointPart Saved(const ModelParameters& model,
                     const MomentFormat& moments = MomentFormat::F32()) {
  return {.layout = *StateLayout::Create(model, {}), .moments = moments};
}

absl::Status Compare(const std::vector<ParameterSpec>& saved,
                     const std::vector<ParameterSpec>& now) {
  return CompareModels(Saved(ModelOf(saved)), ModelOf(now),
                       MomentFormat::F32());
}

TEST(CompareModelsTest, NamesMatricesOfAnotherOptimizer) {
  const ParameterSpec plain = {.name = "a", .shape = {2, 3}};
  ParameterSpec muon = plain;
  muon.orthogonalized = true;
  EXPECT_THAT(Compare({muon}, {muon}), IsOk());
  EXPECT_THAT(
      Compare({muon}, {plain}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("\"a\" is f32 [2, 3] of Muon in the checkpoint and "
                         "f32 [2, 3] here")));
  EXPECT_THAT(Compare({plain}, {muon}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CompareModelsTest, OrderGroupsAndFreezingMayDiffer) {
  EXPECT_THAT(Compare({{.name = "a", .shape = {2, 3}}, {.name = "b"}},
                      {{.name = "b", .trainable = false, .group = 4},
                       {.name = "a", .shape = {2, 3}}}),
              IsOk());
}

TEST(CompareModelsTest, EveryKindOfDifferenceIsNamed) {
  EXPECT_THAT(
      Compare({{.name = "a", .shape = {2, 3}},
               {.name = "old"},
               {.name = "type", .dtype = DType::kBF16},
               {.name = "ice", .trainable = false}},
              {{.name = "a", .shape = {3, 2}},
               {.name = "new"},
               {.name = "type", .dtype = DType::kF16},
               {.name = "ice"}}),
      StatusIs(
          absl::StatusCode::kInvalidArgument,
          AllOf(
              HasSubstr("missing in the checkpoint: \"new\""),
              HasSubstr("only in the checkpoint: \"old\""),
              HasSubstr(
                  "\"a\" is f32 [2, 3] in the checkpoint and f32 [3, 2] here"),
              HasSubstr(
                  "\"type\" is bf16 [] in the checkpoint and f16 [] here"),
              HasSubstr("without moments: \"ice\""),
              HasSubstr("load it into the model that it was saved from"))));
}

TEST(CompareModelsTest, ManyDifferencesAreCounted) {
  std::vector<ParameterSpec> many;
  for (int i = 0; i < 50; ++i) many.push_back({.name = absl::StrCat("p", i)});
  EXPECT_THAT(Compare({}, many),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("\"p0\", \"p1\", \"p2\" and 47 more"),
                             Not(HasSubstr("only in")))));
}

TEST(CompareModelsTest, RejectsOtherMomentsIfPresent) {
  const auto saved = [](DType dtype, bool trainable) {
    return Saved(
        ModelOf({{.name = "a", .dtype = dtype, .trainable = trainable}}),
        MomentFormat::Blockwise8(64));
  };
  const CheckpointPart f32 = saved(DType::kF32, true);
  EXPECT_THAT(CompareModels(f32, f32.model(), MomentFormat::BF16()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the moments of the checkpoint are 8-bit/64, "
                                 "those of the state bf16")));
  EXPECT_THAT(CompareModels(f32, f32.model(), MomentFormat::Blockwise8(128)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  // Different optimizers.
  EXPECT_THAT(
      CompareModels(f32, f32.model(), {MomentFormat::Blockwise8(64), 1}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("has 2 moments of each trained element, the "
                               "state 1 (AdamW"),
                     HasSubstr("with the optimizer of the checkpoint"))));
  CheckpointPart plain = f32;
  plain.moment_count = 0;
  EXPECT_THAT(CompareModels(plain, plain.model(), {MomentFormat::BF16(), 0}),
              IsOk());
  // Saved as f64, or not at all.
  const CheckpointPart f64 = saved(DType::kF64, true);
  EXPECT_THAT(CompareModels(f64, f64.model(), MomentFormat::BF16()), IsOk());
  const CheckpointPart ice = saved(DType::kF32, false);
  EXPECT_THAT(CompareModels(ice, ice.model(), MomentFormat::BF16()), IsOk());
}

}  // namespace
}  // namespace tessera::zero3
