// SettingsFields: the fields of Settings by name, for flags and files.
//
//   for (const SettingsField& field : SettingsFields()) {
//     std::visit([&](auto member) { Show(field.name, settings.*member); },
//                field.member);
//   }
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_INTERNAL_SETTINGS_FIELDS_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_INTERNAL_SETTINGS_FIELDS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tools/train/settings/settings.h"

namespace tessera::train {

struct SettingsField {
  std::string_view name;  // Of the field, its flag, and its key in files.
  std::variant<bool Settings::*, int64_t Settings::*, double Settings::*,
               std::string Settings::*, std::vector<std::string> Settings::*>
      member;
  std::string_view help;
};

// All of them, in the order of Settings. Lives as long as the program.
std::span<const SettingsField> SettingsFields();

// Null where there is none.
const SettingsField* FindSettingsField(std::string_view name);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_INTERNAL_SETTINGS_FIELDS_H_
