#include "base/status_matchers.h"

namespace tessera {
namespace status_matchers_internal {

::testing::AssertionResult CheckOk(const char* expression,
                                   const absl::Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "Value of: " << expression
         << "\nExpected: is OK\n  Actual: " << status.ToString();
}

void StatusMatcher::DescribeTo(std::ostream* os) const {
  if (code_ == absl::StatusCode::kOk) {
    *os << "is OK";
    return;
  }
  *os << "has code " << absl::StatusCodeToString(code_)
      << " and a message that ";
  message_.DescribeTo(os);
}

void StatusMatcher::DescribeNegationTo(std::ostream* os) const {
  *os << "not (";
  DescribeTo(os);
  *os << ")";
}

bool StatusMatcher::Matches(const absl::Status& status,
                            ::testing::MatchResultListener* listener) const {
  *listener << "whose status is " << status.ToString();
  return status.code() == code_ &&
         message_.Matches(std::string(status.message()));
}

}  // namespace status_matchers_internal

status_matchers_internal::StatusMatcher IsOk() {
  return StatusIs(absl::StatusCode::kOk);
}

status_matchers_internal::StatusMatcher StatusIs(
    absl::StatusCode code, ::testing::Matcher<const std::string&> message) {
  return {code, std::move(message)};
}

}  // namespace tessera
