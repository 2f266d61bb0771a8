// SettingsFields: the fields of Settings by name, for flags and files.
//
//   for (const SettingsField& field : SettingsFields()) {
//     std::visit([&](auto member) { Show(field.name, GetField(member,
//     settings)); },
//                field.member);
//   }
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_FIELDS_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_FIELDS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "tools/train/settings/settings.h"
#include "topology/config/parallel_config.h"

namespace tessera::train {

// A field of Settings::parallel, as flags and files have it: a number or a
// text.
template <typename T>
struct ParallelField {
  T (*get)(const topology::ParallelConfig& parallel);
  // InvalidArgument as CheckSettings: "--flag=value: what is allowed, ...".
  absl::Status (*set)(const T& value, topology::ParallelConfig& parallel);
};

struct SettingsField {
  std::string_view name;  // Of the field, its flag, and its key in files.
  std::variant<bool Settings::*, int64_t Settings::*, double Settings::*,
               std::string Settings::*, std::vector<std::string> Settings::*,
               ParallelField<int64_t>, ParallelField<std::string>>
      member;
  std::string_view help;
};

template <typename T>
const T& GetField(T Settings::*member, const Settings& settings) {
  return settings.*member;
}
template <typename T>
T GetField(const ParallelField<T>& field, const Settings& settings) {
  return field.get(settings.parallel);
}

template <typename T>
absl::Status SetField(const T& value, T Settings::*member, Settings& settings) {
  settings.*member = value;
  return absl::OkStatus();
}
template <typename T>
absl::Status SetField(const T& value, const ParallelField<T>& field,
                      Settings& settings) {
  return field.set(value, settings.parallel);
}

// All of them, in the order in which --help and files have them. Lives as long
// as the program.
std::span<const SettingsField> SettingsFields();

// Null where there is none.
const SettingsField* FindSettingsField(std::string_view name);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_FIELDS_H_
