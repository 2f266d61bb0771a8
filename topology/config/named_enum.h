// Named enumerations: parse and print enumerators by the names in one table.
//
//   enum class Colour { kRed, kBlue };
//   template <>
//   struct EnumNames<Colour> {
//     static constexpr std::string_view kWhat = "colour";
//     static constexpr auto kTable = std::to_array<NamedValue<Colour>>(
//         {{"red", Colour::kRed}, {"blue", Colour::kBlue}});
//   };
//   ParseEnum<Colour>("red");       // Colour::kRed
//   EnumName(Colour::kBlue);        // "blue"
//   ABSL_FLAG(Colour, colour, Colour::kRed,
//             "One of: " + AllowedNames<Colour>());
#ifndef TESSERA_TOPOLOGY_CONFIG_NAMED_ENUM_H_
#define TESSERA_TOPOLOGY_CONFIG_NAMED_ENUM_H_

#include <array>
#include <concepts>
#include <ostream>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tessera::topology {

template <typename Enum>
struct NamedValue {
  std::string_view name;
  Enum value;
};

// Specialised for each enumeration. kWhat is the noun for a value in messages,
// and kTable is an array of NamedValue.
template <typename Enum>
struct EnumNames;

template <typename Enum>
concept NamedEnum = requires {
  { EnumNames<Enum>::kWhat } -> std::convertible_to<std::string_view>;
  { EnumNames<Enum>::kTable[0].value } -> std::convertible_to<Enum>;
};

// The name of a value, or "" if the table has no such value.
template <NamedEnum Enum>
constexpr std::string_view EnumName(Enum value) {
  for (const auto& entry : EnumNames<Enum>::kTable) {
    if (entry.value == value) return entry.name;
  }
  return "";
}

// Every name in the order of the table: "red, blue".
template <NamedEnum Enum>
std::string AllowedNames() {
  std::string names;
  for (const auto& entry : EnumNames<Enum>::kTable) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", entry.name);
  }
  return names;
}

// The value of a name, exactly as the table spells it. InvalidArgument, listing
// the names, if there is no such name.
template <NamedEnum Enum>
absl::StatusOr<Enum> ParseEnum(std::string_view name) {
  for (const auto& entry : EnumNames<Enum>::kTable) {
    if (entry.name == name) return entry.value;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown ", EnumNames<Enum>::kWhat, " \"",
      absl::CHexEscape(name.substr(0, 40)), name.size() > 40 ? "..." : "",
      "\"; allowed: ", AllowedNames<Enum>()));
}

// Abseil flags and streams.
template <NamedEnum Enum>
bool AbslParseFlag(std::string_view text, Enum* value, std::string* error) {
  absl::StatusOr<Enum> parsed = ParseEnum<Enum>(text);
  if (!parsed.ok()) {
    *error = std::string(parsed.status().message());
    return false;
  }
  *value = *parsed;
  return true;
}

template <NamedEnum Enum>
std::string AbslUnparseFlag(Enum value) {
  return std::string(EnumName(value));
}

template <NamedEnum Enum>
std::ostream& operator<<(std::ostream& os, Enum value) {
  return os << EnumName(value);
}

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CONFIG_NAMED_ENUM_H_
