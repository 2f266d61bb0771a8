#include "tools/train/checkpoint/held_tensor.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kQkv[] =
    "layers.0.attention.qkv.weight 40x24 0-12,24-28*,32-36* 0-24\n";

TEST(HeldTensorTest, IsALineOfText) {
  const HeldTensor tensor = {
      .name = "layers.0.attention.qkv.weight",
      .shape = {40, 24},
      .rows = {{{0, 12}}, {{24, 28}, false}, {{32, 36}, false}},
      .columns = {0, 24}};
  EXPECT_EQ(FormatHeldTensors({&tensor, 1}), kQkv);
  EXPECT_THAT(ParseHeldTensors(kQkv),
              IsOkAndHolds(std::vector<HeldTensor>{tensor}));
  EXPECT_EQ(tensor.whole_elements(), 960);
  EXPECT_EQ(tensor.held_shape(), (std::vector<int64_t>{20, 24}));
}

TEST(HeldTensorTest, VectorsAndEmptyRangesReadBack) {
  const std::vector<HeldTensor> tensors = {
      WholeTensor("norm", {24}),
      WholeTensor("none", {0, 5}),
      {.name = "w", .shape = {7, 3}, .rows = {{{7, 7}}}, .columns = {1, 1}}};
  EXPECT_THAT(ParseHeldTensors(FormatHeldTensors(tensors)),
              IsOkAndHolds(tensors));
  EXPECT_THAT(ParseHeldTensors(""), IsOkAndHolds(std::vector<HeldTensor>()));
  EXPECT_EQ(tensors[0].held_shape(), std::vector<int64_t>{24});
}

TEST(HeldTensorTest, HoldSameIgnoresFirstMarker) {
  const HeldTensor a = ParseHeldTensors("a 8x4 0-2,4-6 0-4\n")->front();
  HeldTensor b = ParseHeldTensors("b 8x4 0-2*,4-6 0-4\n")->front();
  EXPECT_TRUE(HoldSame(a, b));
  b.columns = {0, 3};
  EXPECT_FALSE(HoldSame(a, b));
}

TEST(HeldTensorTest, RejectsInvalidLines) {
  for (const auto& [line, message] :
       std::vector<std::pair<std::string, std::string>>{
           {"a 4 0-4", "does not end"},
           {"a 4 0-4\n", "not a name, a shape"},
           {"a 4 0-4 0-1 0\n", "not a name, a shape"},
           {" 4 0-4 0-1\n", "not a name, a shape"},
           {"a x4 0-4 0-1\n", "\"\" is not a number"},
           {"a +4 0-4 0-1\n", "\"+4\" is not a number"},
           {"a 9999999999999999999 0-4 0-1\n", "is not a number from 0 to"},
           {"a 16777216x16777217 0-4 0-1\n", "more than"},
           {"a 4 0-5 0-1\n", "\"0-5\" is not a range within 4"},
           {"a 4 3-2 0-1\n", "\"3-2\" is not a range"},
           {"a 4 0-4 0-2\n", "is not a range within 1"},
           {"a 4 0-4 0-0\n", "a vector has the columns 0-1"},
           {"a 4 0-4,0-1 0-1\n", "holds 5 rows of 4"},
           {"a 4x2 0-4 1-3\n", "is not a range within 2"},
           {std::string(1100, 'n') + " 4 0-4 0-1\n", "not a name"}}) {
    EXPECT_THAT(ParseHeldTensors(line),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("line 1"), HasSubstr(message))))
        << line;
  }
  std::string many = "a 4 0-0";
  for (size_t i = 0; i < kMaxHeldRanges; ++i) many += ",0-0";
  EXPECT_THAT(ParseHeldTensors(many + " 0-1\n"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("more than 8192 ranges")));
  EXPECT_THAT(ParseHeldTensors(absl::StrCat(kQkv, "b\n")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("line 2 of the tensors")));
}

TEST(HeldTensorFuzzTest, DamagedTextIsRejectedOrRoundTrips) {
  TextMutator mutator({absl::StrCat(kQkv, "norm 24 0-24* 0-1\n"),
                       "down 24x38 0-24 19-38\nembedding 267x24 0-67 0-24\n"},
                      {"-", "x", "*", ",", " ", "\n", "9223372036854775807",
                       std::string(3000, ','), "0-0,"},
                      11);
  int valid = 0;
  for (int round = 0; round < 40'000; ++round) {
    const std::string text = mutator.Next();
    const auto tensors = ParseHeldTensors(text);
    if (!tensors.ok()) {
      ASSERT_EQ(tensors.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_FALSE(tensors.status().message().empty());
      ASSERT_LT(tensors.status().message().size(), 1000u);
      continue;
    }
    ++valid;
    for (const HeldTensor& tensor : *tensors) {
      int64_t rows = 0;
      for (const auto& one : tensor.rows) rows += one.range.size();
      ASSERT_LE(rows * tensor.width(), tensor.whole_elements());
    }
    ASSERT_THAT(ParseHeldTensors(FormatHeldTensors(*tensors)),
                IsOkAndHolds(*tensors));
  }
  EXPECT_GT(valid, 1000);
}

}  // namespace
}  // namespace tessera::train
