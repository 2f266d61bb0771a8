// The table of settings: one row per field of Settings, with its name, section,
// type, allowed values and help.
//
// The command line (settings_flags.h), the JSON files (settings.h), the checks
// of single values (check_settings.h), --help, the run's page and the Python
// package read this table; a new setting is a field of Settings and a row here.
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_TABLE_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_TABLE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "tools/train/settings/settings.h"
#include "topology/config/parallel_config.h"

namespace tessera::train {

// A field of Settings::parallel, by its name there and here.
template <typename T>
struct ParallelField {
  std::string_view name;
};

// A limit, whose value in flags and files is the text of FormatByteLimit.
struct LimitField {
  std::string_view name;
  ByteSize Settings::*member;
};

// A number or "auto" (kAutomatic). Flags have text; files have "auto" or a
// number.
struct AutomaticField {
  std::string_view name;
  int64_t Settings::*member;
};

// The allowed values of a field: anything (or what ParallelConfig and
// ParseByteLimit check, for their fields), an inclusive range of integers, a
// range of numbers, or one of several names.
struct AnyValue {};
struct WholeRange {
  int64_t least = 0;
  int64_t most = 0;
  std::optional<int64_t> or_value = std::nullopt;  // Also allowed.
};
struct RealRange {
  double least = 0;
  bool with_least = true;
  double below = 0;  // Excluded; may be infinite.
  std::string_view example;
  std::optional<double> or_value = std::nullopt;  // Also allowed.
};
struct OneOf {
  std::string_view names;  // Separated by ", ".
};
using AllowedValues = std::variant<AnyValue, WholeRange, RealRange, OneOf>;

// One row.
//
//   for (const SettingsField& field : SettingsFields()) {
//     std::visit(
//         [&](auto member) { Show(field.name, GetField(member, settings)); },
//         field.member);
//   }
struct SettingsField {
  std::string_view name;  // The name of the flag and the key in files.
  std::string_view section;
  std::variant<bool Settings::*, int64_t Settings::*, double Settings::*,
               std::string Settings::*, std::vector<std::string> Settings::*,
               LimitField, AutomaticField, ParallelField<int64_t>,
               ParallelField<std::string>>
      member;
  AllowedValues allowed;
  std::string_view help;
  bool is_common = false;  // Listed by --help; --help=all lists all fields.
};

// All rows, in the order of --help and files. Static lifetime.
std::span<const SettingsField> SettingsFields();

// Null if no field has this name.
const SettingsField* FindSettingsField(std::string_view name);

template <typename T>
const T& GetField(T Settings::*member, const Settings& settings) {
  return settings.*member;
}
inline std::string GetField(const LimitField& field, const Settings& settings) {
  return FormatByteLimit(settings.*field.member);
}
inline std::string GetField(const AutomaticField& field,
                            const Settings& settings) {
  const int64_t value = settings.*field.member;
  return value == kAutomatic ? "auto" : absl::StrCat(value);
}
template <typename T>
T GetField(const ParallelField<T>& field, const Settings& settings) {
  return std::get<T>(settings.parallel.Field(field.name));
}

// InvalidArgument with the message "--field=given: allowed, such as
// --field=fix".
absl::Status FlagProblem(const topology::ConfigProblem& problem);

template <typename T>
absl::Status SetField(const T& value, T Settings::*member, Settings& settings) {
  settings.*member = value;
  return absl::OkStatus();
}
absl::Status SetField(const std::string& value, const LimitField& field,
                      Settings& settings);
absl::Status SetField(const std::string& value, const AutomaticField& field,
                      Settings& settings);
template <typename T>
absl::Status SetField(const T& value, const ParallelField<T>& field,
                      Settings& settings) {
  const auto problem = settings.parallel.SetField(field.name, value);
  return problem ? FlagProblem(*problem) : absl::OkStatus();
}

// The field's value as its flag shows it. `field` must be in the table.
std::string FieldText(std::string_view field, const Settings& settings);

// Returns InvalidArgument, "--flag=value: must be ..., such as --flag=example",
// unless the field's value is one of `field.allowed`.
absl::Status CheckAllowed(const SettingsField& field, const Settings& settings);

// Returns InvalidArgument with the message "--flag=value: why".
absl::Status RefuseFlag(std::string_view flag, const absl::AlphaNum& value,
                        const absl::AlphaNum& why);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_TABLE_H_
