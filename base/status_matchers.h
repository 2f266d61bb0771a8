// GoogleTest matchers and assertions for absl::Status and absl::StatusOr.
//
//   EXPECT_THAT(mesh.RankOf(coordinates), IsOkAndHolds(Rank(3)));
//   EXPECT_THAT(Mesh::Create(axes),
//               StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tp")));
//   TESSERA_ASSERT_OK_AND_ASSIGN(Mesh mesh, Mesh::Create(axes));
#ifndef TESSERA_BASE_STATUS_MATCHERS_H_
#define TESSERA_BASE_STATUS_MATCHERS_H_

#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace status_matchers_internal {

inline const absl::Status& GetStatus(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& GetStatus(const absl::StatusOr<T>& value) {
  return value.status();
}

// The result of the macros below. They use no matcher, because matchers are
// compiled for every type T of StatusOr<T>.
::testing::AssertionResult CheckOk(const char* expression,
                                   const absl::Status& status);
template <typename T>
::testing::AssertionResult CheckOk(const char* expression,
                                   const absl::StatusOr<T>& value) {
  return CheckOk(expression, value.status());
}

// Matches a Status or StatusOr by its status.
class StatusMatcher : public ::testing::MatcherDescriberInterface {
 public:
  using is_gtest_matcher = void;

  StatusMatcher(absl::StatusCode code,
                ::testing::Matcher<const std::string&> message)
      : code_(code), message_(std::move(message)) {}

  template <typename T>
  bool MatchAndExplain(const T& value,
                       ::testing::MatchResultListener* listener) const {
    return Matches(GetStatus(value), listener);
  }
  void DescribeTo(std::ostream* os) const override;
  void DescribeNegationTo(std::ostream* os) const override;

 private:
  bool Matches(const absl::Status& status,
               ::testing::MatchResultListener* listener) const;

  absl::StatusCode code_;
  ::testing::Matcher<const std::string&> message_;
};

}  // namespace status_matchers_internal

status_matchers_internal::StatusMatcher IsOk();

// Matches the code and, if given, the message.
status_matchers_internal::StatusMatcher StatusIs(
    absl::StatusCode code,
    ::testing::Matcher<const std::string&> message = ::testing::_);

MATCHER_P(IsOkAndHolds, value, "is OK and holds the value") {
  if (!arg.ok()) {
    *result_listener << "whose status is " << arg.status().ToString();
    return false;
  }
  using Value = std::decay_t<decltype(*arg)>;
  return ::testing::SafeMatcherCast<const Value&>(value).MatchAndExplain(
      *arg, result_listener);
}

}  // namespace tessera

#define TESSERA_EXPECT_OK(expression) \
  EXPECT_PRED_FORMAT1(::tessera::status_matchers_internal::CheckOk, expression)
#define TESSERA_ASSERT_OK(expression) \
  ASSERT_PRED_FORMAT1(::tessera::status_matchers_internal::CheckOk, expression)

#define TESSERA_MATCHERS_CONCAT_INNER_(a, b) a##b
#define TESSERA_MATCHERS_CONCAT_(a, b) TESSERA_MATCHERS_CONCAT_INNER_(a, b)

// Declares or assigns `lhs` from a StatusOr; ends the test if it is an
// error.
#define TESSERA_ASSERT_OK_AND_ASSIGN(lhs, expression)                \
  TESSERA_ASSERT_OK_AND_ASSIGN_NAMED_(                               \
      TESSERA_MATCHERS_CONCAT_(tessera_asserted_, __COUNTER__), lhs, \
      expression)
#define TESSERA_ASSERT_OK_AND_ASSIGN_NAMED_(name, lhs, expression) \
  auto name = (expression);                                        \
  TESSERA_ASSERT_OK(name);                                         \
  lhs = *std::move(name)

#endif  // TESSERA_BASE_STATUS_MATCHERS_H_
