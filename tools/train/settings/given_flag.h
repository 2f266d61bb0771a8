// GivenFlag: the value of a flag, and whether it was given: one that was
// overrides a file, be it with the default.
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_GIVEN_FLAG_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_GIVEN_FLAG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/flags/marshalling.h"

namespace tessera::train {

template <typename T>
struct GivenFlag {
  GivenFlag() = default;
  explicit GivenFlag(T first) : value(std::move(first)) {}

  T value = {};
  bool given = false;
};

// What a text that is no T should have been.
template <typename T>
constexpr std::string_view ExpectedFlagValue() {
  if (std::is_same_v<T, bool>) return "expected true or false";
  if (std::is_same_v<T, int64_t>) {
    return "expected a whole number, -2^63 to 2^63-1";
  }
  if (std::is_same_v<T, double>) return "expected a number such as 3e-4";
  return "expected names separated by commas, none of them empty";
}

template <typename T>
bool AbslParseFlag(std::string_view text, GivenFlag<T>* flag,
                   std::string* error) {
  bool parsed = absl::ParseFlag(text, &flag->value, error);
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    parsed = parsed && !absl::c_linear_search(flag->value, "");
  }
  flag->given = true;
  if (!parsed) *error = std::string(ExpectedFlagValue<T>());
  return parsed;
}

template <typename T>
std::string AbslUnparseFlag(const GivenFlag<T>& flag) {
  return absl::UnparseFlag(flag.value);
}

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_GIVEN_FLAG_H_
