#include "tools/model_files/element_type.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::model_files {
namespace {

using ::testing::HasSubstr;

TEST(ElementTypeTest, NamesReadBack) {
  for (int i = 0; i <= static_cast<int>(ElementType::kF64); ++i) {
    const auto type = static_cast<ElementType>(i);
    EXPECT_THAT(ParseElementType(ElementTypeName(type)), IsOkAndHolds(type));
  }
}

TEST(ElementTypeTest, EveryDTypeHasOneOfTheSameSize) {
  for (const DType dtype : kAllDTypes) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const ElementType type, FromDType(dtype));
    EXPECT_THAT(ToDType(type), IsOkAndHolds(dtype));
    EXPECT_EQ(ElementBytes(type), SizeInBytes(dtype));
  }
  EXPECT_EQ(ElementTypeName(*FromDType(DType::kF8E4M3)), "F8_E4M3");
}

TEST(ElementTypeTest, RefusesWhatItHasNot) {
  EXPECT_THAT(ToDType(ElementType::kBool),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("BOOL")));
  EXPECT_THAT(FromDType(static_cast<DType>(99)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("99")));
  EXPECT_THAT(ParseElementType("bf16"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"bf16\" is not known; the known ones are "
                                 "BOOL U8 I8")));
}

}  // namespace
}  // namespace tessera::model_files
