#include "base/os/shared_library.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SharedLibraryTest, OpensFirstAvailableLibrary) {
  const std::vector<std::string> names = {"libtessera_missing.so", "libm.so.6"};
  TESSERA_ASSERT_OK_AND_ASSIGN(const SharedLibrary library,
                               SharedLibrary::Open(names));
  EXPECT_EQ(library.name(), "libm.so.6");
  double (*root)(double) = nullptr;
  TESSERA_ASSERT_OK(library.Require("sqrt", root));
  EXPECT_EQ(root(9), 3);
}

TEST(SharedLibraryTest, NamesMissingLibraryOrSymbol) {
  const std::vector<std::string> names = {"libtessera_missing.so",
                                          "/nowhere/libtessera.so"};
  EXPECT_THAT(SharedLibrary::Open(names),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("libtessera_missing.so"),
                             HasSubstr("/nowhere/libtessera.so"))));

  const std::vector<std::string> maths = {"libm.so.6"};
  TESSERA_ASSERT_OK_AND_ASSIGN(const SharedLibrary library,
                               SharedLibrary::Open(maths));
  void (*none)() = nullptr;
  EXPECT_FALSE(library.Find("tessera_none", none));
  EXPECT_THAT(library.Require("tessera_none", none),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("libm.so.6 has no tessera_none")));
}

}  // namespace
}  // namespace tessera
