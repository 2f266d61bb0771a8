#include "topology/config/named_enum.h"

#include <optional>
#include <sstream>
#include <string>

#include "absl/flags/marshalling.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

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

TEST(NamedEnumTest, RefusesOtherNamesAndListsTheTable) {
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

}  // namespace
}  // namespace tessera::topology
