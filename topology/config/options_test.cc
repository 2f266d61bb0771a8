#include <cstdint>
#include <set>
#include <string>

#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "topology/config/strategies.h"

namespace tessera::topology {
namespace {

template <typename Enum>
class OptionsTest : public ::testing::Test {};

using Options = ::testing::Types<MemoryStrategy, CommunicationStrategy>;
TYPED_TEST_SUITE(OptionsTest, Options);

TYPED_TEST(OptionsTest, NamesAndValuesAreOneToOneAndInOrder) {
  std::set<std::string_view> names;
  int64_t expected = 0;
  for (const auto& [name, value] : EnumNames<TypeParam>::kTable) {
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_EQ(static_cast<int64_t>(value), expected++) << name;
    EXPECT_EQ(EnumName(value), name);
    EXPECT_THAT(ParseEnum<TypeParam>(name), IsOkAndHolds(value));
  }
}

TEST(PrecisionTest, OnlyWhatRunsComputeInHasAName) {
  EXPECT_THAT(ParseEnum<DType>("fp32"), IsOkAndHolds(DType::kF32));
  EXPECT_THAT(ParseEnum<DType>("bf16"), IsOkAndHolds(DType::kBF16));
  EXPECT_EQ(EnumName(DType::kF32), "fp32");
  EXPECT_EQ(EnumName(DType::kF64), "");
  EXPECT_FALSE(ParseEnum<DType>("f32").ok());
}

}  // namespace
}  // namespace tessera::topology
