#include "base/dtype/dtype_traits.h"

#include <string>
#include <type_traits>

#include "gtest/gtest.h"

namespace tessera {
namespace {

static_assert(kDTypeOf<float> == DType::kF32);
static_assert(kDTypeOf<F8E4M3> == DType::kF8E4M3);
static_assert(std::is_same_v<CppTypeOf<DType::kBF16>, BF16>);
static_assert(DTypeElement<int8_t>);
static_assert(!DTypeElement<bool>);
static_assert(!DTypeElement<const float>);
static_assert(!DTypeElement<int16_t>);

TEST(DTypeTraitsTest, DispatchGivesTheTypeOfEveryDType) {
  for (DType dtype : kAllDTypes) {
    DispatchDType(dtype, [&]<typename T>(std::type_identity<T>) {
      EXPECT_EQ(kDTypeOf<T>, dtype);
      EXPECT_EQ(static_cast<int64_t>(sizeof(T)), SizeInBytes(dtype));
      static_assert(std::is_same_v<CppTypeOf<kDTypeOf<T>>, T>);
    });
  }
}

TEST(DTypeTraitsTest, DispatchReturnsFunctorResult) {
  const std::string name =
      DispatchDType(DType::kU8, []<typename T>(std::type_identity<T>) {
        return std::string(DTypeName(kDTypeOf<T>));
      });
  EXPECT_EQ(name, "u8");
}

TEST(DTypeTraitsDeathTest, DispatchOfAnInvalidDTypeAborts) {
  EXPECT_DEATH(DispatchDType(static_cast<DType>(99), [](auto) {}), "");
}

}  // namespace
}  // namespace tessera
