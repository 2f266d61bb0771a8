#include "topology/config/strategies.h"

#include <cstdint>
#include <optional>
#include <set>
#include <sstream>
#include <string>

#include "absl/flags/marshalling.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "topology/config/named_enum.h"

namespace tessera::topology {

enum class Colour { kRed, kBlue };

template <>
struct EnumNames<Colour> {
  static constexpr std::string_view kWhat = "colour";
  static constexpr auto kTable = std::to_array<NamedValue<Colour>>(
      {{"red", Colour::kRed}, {"blue", Colour::kBlue}});
};

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

static_assert(NamedEnum<Colour>);
static_assert(!NamedEnum<int>);

TEST(NamedEnumTest, ReadsAndPrintsByTheTable) {
  EXPECT_THAT(ParseEnum<Colour>("red"), IsOkAndHolds(Colour::kRed));
  EXPECT_EQ(EnumName(Colour::kBlue), "blue");
  EXPECT_EQ(AllowedNames<Colour>(), "red, blue");
  std::ostringstream os;
  os << Colour::kBlue;
  EXPECT_EQ(os.str(), "blue");
}

TEST(NamedEnumTest, AValueOutsideTheTableHasNoName) {
  EXPECT_EQ(EnumName(static_cast<Colour>(7)), "");
}

TEST(NamedEnumTest, RejectsOtherNamesAndListsTable) {
  for (const char* name : {"", "Red", "red ", "green"}) {
    EXPECT_THAT(ParseEnum<Colour>(name),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("unknown colour"),
                               HasSubstr("allowed: red, blue"))));
  }
}

TEST(NamedEnumTest, LongAndUnprintableNamesAreCutAndEscaped) {
  const std::string text = "\x01" + std::string(1000, 'x');
  EXPECT_THAT(ParseEnum<Colour>(text),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("\\x01"), HasSubstr("..."),
                             Not(HasSubstr(std::string(41, 'x'))))));
}

TEST(NamedEnumTest, IsAFlag) {
  Colour colour = Colour::kBlue;
  std::string error;
  ASSERT_TRUE(absl::ParseFlag("red", &colour, &error));
  EXPECT_EQ(colour, Colour::kRed);
  EXPECT_EQ(absl::UnparseFlag(colour), "red");
  EXPECT_FALSE(absl::ParseFlag("green", &colour, &error));
  EXPECT_THAT(error, HasSubstr("red, blue"));
  EXPECT_EQ(colour, Colour::kRed);
}

TEST(NamedEnumTest, IsAnOptionalFlag) {
  std::optional<Colour> colour;
  std::string error;
  ASSERT_TRUE(absl::ParseFlag("blue", &colour, &error));
  EXPECT_EQ(colour, Colour::kBlue);
}

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

TEST(PrecisionTest, NamesOnlyComputeTypes) {
  EXPECT_THAT(ParseEnum<DType>("fp32"), IsOkAndHolds(DType::kF32));
  EXPECT_THAT(ParseEnum<DType>("bf16"), IsOkAndHolds(DType::kBF16));
  EXPECT_THAT(ParseEnum<DType>("fp16"), IsOkAndHolds(DType::kF16));
  EXPECT_EQ(EnumName(DType::kF32), "fp32");
  EXPECT_EQ(EnumName(DType::kF64), "");
  EXPECT_FALSE(ParseEnum<DType>("f32").ok());
}

}  // namespace

}  // namespace tessera::topology
