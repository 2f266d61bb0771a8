// A program that links all registrations knows all names on every machine: an
// engine is available or its error says why it is not.
#include <algorithm>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "collectives/engine/engine_registry.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(LinkedEnginesTest, AreAvailableOrExplainWhyNot) {
  const std::vector<std::string> there = RegisteredEngines();
  for (const char* const name : {"gloo", "mpi"}) {
    const bool built =
        std::find(there.begin(), there.end(), name) != there.end();
    // An option that no engine has is rejected before anything starts.
    const auto engine =
        CreateEngine(name, {.options = {{"no_such_option", ""}}});
    if (built) {
      EXPECT_THAT(engine, StatusIs(absl::StatusCode::kInvalidArgument,
                                   AllOf(HasSubstr("no_such_option"),
                                         HasSubstr("timeout"))));
    } else {
      EXPECT_THAT(engine, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   AllOf(HasSubstr("was not built in"),
                                         HasSubstr("build again"))));
    }
  }
}

}  // namespace
}  // namespace tessera::collectives
