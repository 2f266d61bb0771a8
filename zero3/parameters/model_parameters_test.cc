#include "zero3/parameters/model_parameters.h"

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::zero3 {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

absl::StatusOr<ModelParameters> BuildOne(ParameterSpec spec) {
  return ModelParameters::Builder().Add(std::move(spec)).Build();
}

TEST(ModelParametersTest, IdsFollowInsertionAndNamesAreFound) {
  ModelParameters::Builder builder;
  for (int i = 0; i < 1000; ++i) {
    builder.Add({.name = absl::StrCat("p", i), .shape = {i, 3}});
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const ModelParameters model, builder.Build());
  ASSERT_EQ(model.count(), 1000);
  int64_t elements = 0;
  for (int i = 0; i < 1000; ++i) {
    const ParameterId id(i);
    EXPECT_THAT(model.Find(absl::StrCat("p", i)), IsOkAndHolds(id));
    EXPECT_EQ(model[id].id, id);
    EXPECT_EQ(model[id].elements, 3 * i);
    EXPECT_EQ(model[id].bytes, 12 * i);
    elements += 3 * i;
  }
  EXPECT_EQ(model.elements(), elements);
  EXPECT_EQ(model.bytes(), 4 * elements);
}

TEST(ModelParametersTest, CopiesOutliveTheFirst) {
  ModelParameters copy;
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(const ModelParameters model,
                                 BuildOne({.name = "a", .shape = {2}}));
    copy = model;
    EXPECT_EQ(copy, model);
  }
  EXPECT_THAT(copy.Find("a"), IsOkAndHolds(ParameterId(0)));
}

TEST(ModelParametersTest, AnEmptyModelIsAModel) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const ModelParameters model,
                               ModelParameters::Builder().Build());
  EXPECT_EQ(model, ModelParameters());
  EXPECT_EQ(model.count(), 0);
  EXPECT_EQ(model.group_count(), 0);
  EXPECT_THAT(model.Find("a"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("among the 0")));
}

TEST(ModelParametersTest, ScalarsHaveOneElementAndEmptyTensorsNone) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const ModelParameters model,
      ModelParameters::Builder()
          .Add({.name = "scalar", .dtype = DType::kBF16})
          .Add({.name = "empty", .shape = {kMax, 0, kMax}})
          .Build());
  EXPECT_EQ(model[ParameterId(0)].bytes, 2);
  EXPECT_EQ(model[ParameterId(1)].elements, 0);
}

TEST(ModelParametersTest, GroupsAscendAndKeepInsertionWithin) {
  const int64_t groups[] = {7, 0, 7, kMax, 0};
  ModelParameters::Builder builder;
  for (int i = 0; i < 5; ++i) {
    builder.Add({.name = absl::StrCat(i), .group = groups[i]});
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const ModelParameters model, builder.Build());
  ASSERT_EQ(model.group_count(), 3);
  EXPECT_THAT(model.group(0), ElementsAre(ParameterId(1), ParameterId(4)));
  EXPECT_THAT(model.group(1), ElementsAre(ParameterId(0), ParameterId(2)));
  EXPECT_THAT(model.group(2), ElementsAre(ParameterId(3)));
  EXPECT_THAT(model.in_use_order(),
              ElementsAre(ParameterId(1), ParameterId(4), ParameterId(0),
                          ParameterId(2), ParameterId(3)));
}

TEST(ModelParametersTest, DifferentSpecsMakeDifferentModels) {
  const ParameterSpec spec = {.name = "a", .shape = {2, 3}};
  TESSERA_ASSERT_OK_AND_ASSIGN(const ModelParameters model, BuildOne(spec));
  const auto differs = [&](auto change) {
    ParameterSpec other = spec;
    change(other);
    return !(*BuildOne(other) == model);
  };
  EXPECT_FALSE(differs([](ParameterSpec&) {}));
  EXPECT_TRUE(differs([](ParameterSpec& s) { s.name = "b"; }));
  EXPECT_TRUE(differs([](ParameterSpec& s) { s.shape = {3, 2}; }));
  EXPECT_TRUE(differs([](ParameterSpec& s) { s.dtype = DType::kF16; }));
  EXPECT_TRUE(differs([](ParameterSpec& s) { s.trainable = false; }));
  EXPECT_TRUE(differs([](ParameterSpec& s) { s.group = 1; }));
  EXPECT_NE(model, ModelParameters());
}

void ExpectRefused(ParameterSpec spec, std::string_view message) {
  EXPECT_THAT(BuildOne(std::move(spec)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("parameter 0"),
                             HasSubstr(std::string(message)))));
}

TEST(ModelParametersTest, RejectsWrongSpecs) {
  ExpectRefused({.name = ""}, "the name is empty");
  ExpectRefused({.name = std::string(1025, 'x')}, "has 1025 bytes");
  ExpectRefused({.name = "a", .shape = {2, -1}},
                "shape [2, -1] has a negative dimension");
  ExpectRefused({.name = "a", .dtype = static_cast<DType>(99)},
                "type number 99 is unknown");
  ExpectRefused({.name = "a", .dtype = DType::kI64}, "i64 cannot be trained");
  ExpectRefused({.name = "a", .group = -3}, "group is -3");
  ExpectRefused({.name = "a", .shape = {kMax, 2}}, "more than 2^63-1 elements");
  ExpectRefused({.name = "a", .shape = {kMax / 2}}, "more than 2^63-1 bytes");
}

TEST(ModelParametersTest, IntegerBuffersAreAllowedWhenFrozen) {
  TESSERA_EXPECT_OK(
      BuildOne({.name = "a", .dtype = DType::kI64, .trainable = false}));
}

TEST(ModelParametersTest, RejectsOverflowingTotals) {
  EXPECT_THAT(ModelParameters::Builder()
                  .Add({.name = "a", .shape = {kMax / 4}})
                  .Add({.name = "b", .shape = {kMax / 4}})
                  .Build(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the model exceeds 2^63-1")));
}

TEST(ModelParametersTest, RejectsDuplicateNamesAndNamesFirst) {
  EXPECT_THAT(ModelParameters::Builder()
                  .Add({.name = "a"})
                  .Add({.name = "b\n"})
                  .Add({.name = "b\n"})
                  .Build(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("parameter 2 \"b\\n\": the name is "
                                       "taken by parameter 1"),
                             Not(HasSubstr("parameter 0")))));
}

TEST(ModelParametersTest, ReportsLimitedNumberOfMistakes) {
  ModelParameters::Builder builder;
  for (int i = 0; i < 100; ++i) builder.Add({.name = ""});
  const absl::Status status = builder.Build().status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("100 mistakes"),
                                     HasSubstr("and 84 more"))));
  EXPECT_LT(status.message().size(), 2000u);
}

TEST(ModelParametersTest, RejectsUnknownNamesAndIds) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const ModelParameters model,
                               BuildOne({.name = "weight"}));
  EXPECT_THAT(
      model.Find(std::string(5000, 'w')),
      StatusIs(absl::StatusCode::kNotFound,
               AllOf(HasSubstr("the first is \"weight\""), HasSubstr("..."))));
  TESSERA_EXPECT_OK(model.CheckId(ParameterId(0)));
  for (const int64_t id : {int64_t{-1}, int64_t{1}, kMax}) {
    EXPECT_THAT(model.CheckId(ParameterId(id)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("allowed: 0 to below 1")));
  }
}

}  // namespace
}  // namespace tessera::zero3
