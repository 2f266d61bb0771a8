#include "base/dtype/dtype.h"

#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/marshalling.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(DTypeTest, ListsTypesInOrderOfNumber) {
  for (size_t i = 0; i < kAllDTypes.size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(kAllDTypes[i]), i);
    EXPECT_TRUE(IsValid(kAllDTypes[i]));
  }
}

TEST(DTypeTest, HasSizesAndKinds) {
  const std::vector<std::tuple<DType, int64_t, bool>> cases = {
      {DType::kF64, 8, true},    {DType::kF32, 4, true},
      {DType::kF16, 2, true},    {DType::kBF16, 2, true},
      {DType::kF8E4M3, 1, true}, {DType::kF8E5M2, 1, true},
      {DType::kI64, 8, false},   {DType::kI32, 4, false},
      {DType::kI8, 1, false},    {DType::kU8, 1, false},
  };
  ASSERT_EQ(cases.size(), kAllDTypes.size());
  for (const auto& [dtype, size, is_floating] : cases) {
    EXPECT_EQ(SizeInBytes(dtype), size) << dtype;
    EXPECT_EQ(IsFloating(dtype), is_floating) << dtype;
    EXPECT_EQ(IsInteger(dtype), !is_floating) << dtype;
  }
}

TEST(DTypeTest, EveryOtherNumberIsInvalid) {
  for (int i = static_cast<int>(kAllDTypes.size()); i < 256; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_FALSE(IsValid(dtype));
    EXPECT_FALSE(IsFloating(dtype));
    EXPECT_FALSE(IsInteger(dtype));
    EXPECT_EQ(SizeInBytes(dtype), 0);
    EXPECT_EQ(DTypeName(dtype), "invalid");
  }
}

TEST(DTypeTest, NamesAreDistinctAndParseBack) {
  std::set<std::string_view> names;
  for (DType dtype : kAllDTypes) {
    EXPECT_TRUE(names.insert(DTypeName(dtype)).second);
    EXPECT_THAT(ParseDType(DTypeName(dtype)), IsOkAndHolds(dtype));
  }
}

TEST(DTypeTest, ParsesCommonSynonyms) {
  const std::vector<std::pair<std::string, DType>> cases = {
      {"float64", DType::kF64},        {"double", DType::kF64},
      {"float32", DType::kF32},        {"float", DType::kF32},
      {"float16", DType::kF16},        {"half", DType::kF16},
      {"bfloat16", DType::kBF16},      {"float8_e4m3fn", DType::kF8E4M3},
      {"float8_e5m2", DType::kF8E5M2}, {"int64", DType::kI64},
      {"int32", DType::kI32},          {"int8", DType::kI8},
      {"uint8", DType::kU8},
  };
  for (const auto& [text, dtype] : cases) {
    EXPECT_THAT(ParseDType(text), IsOkAndHolds(dtype)) << text;
  }
}

TEST(DTypeTest, RejectsUnknownNamesAndListsKnownOnes) {
  for (const char* text :
       {"", "f", "F32", " f32", "f32 ", "invalid", "int16"}) {
    EXPECT_THAT(ParseDType(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("f64, f32, f16, bf16, fp8_e4m3, fp8_e5m2, "
                                   "i64, i32, i8, u8, or float64, double")))
        << text;
  }
}

TEST(DTypeTest, TruncatesLongNamesInTheMessage) {
  const std::string text(100'000, 'x');
  EXPECT_LT(ParseDType(text).status().message().size(), 400);
}

TEST(DTypeTest, IsAFlagAndPrints) {
  DType dtype = DType::kF32;
  std::string error;
  ASSERT_TRUE(absl::ParseFlag("half", &dtype, &error));
  EXPECT_EQ(dtype, DType::kF16);
  EXPECT_EQ(absl::UnparseFlag(dtype), "f16");
  EXPECT_FALSE(absl::ParseFlag("float12", &dtype, &error));
  EXPECT_THAT(error, HasSubstr("\"float12\""));
  EXPECT_EQ(dtype, DType::kF16);
  std::ostringstream out;
  out << DType::kF8E4M3;
  EXPECT_EQ(out.str(), "fp8_e4m3");
}

}  // namespace
}  // namespace tessera
