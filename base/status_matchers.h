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

}  // namespace status_matchers_internal

MATCHER(IsOk, negation ? "is not OK" : "is OK") {
  const absl::Status& status = status_matchers_internal::GetStatus(arg);
  *result_listener << "whose status is " << status.ToString();
  return status.ok();
}

MATCHER_P2(StatusIs, code, message,
           "has code " + absl::StatusCodeToString(code) +
               " and a message that " +
               ::testing::DescribeMatcher<std::string>(message)) {
  const absl::Status& status = status_matchers_internal::GetStatus(arg);
  *result_listener << "whose status is " << status.ToString();
  return status.code() == code &&
         ::testing::Matches(message)(std::string(status.message()));
}

MATCHER_P(StatusIs, code, "has code " + absl::StatusCodeToString(code)) {
  const absl::Status& status = status_matchers_internal::GetStatus(arg);
  *result_listener << "whose status is " << status.ToString();
  return status.code() == code;
}

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

#define TESSERA_EXPECT_OK(expression) EXPECT_THAT(expression, ::tessera::IsOk())
#define TESSERA_ASSERT_OK(expression) ASSERT_THAT(expression, ::tessera::IsOk())

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
  ASSERT_THAT(name, ::tessera::IsOk());                            \
  lhs = *std::move(name)

#endif  // TESSERA_BASE_STATUS_MATCHERS_H_
