#include "tools/train/settings/settings_flags.h"

#include <cstdint>
#include <type_traits>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/flags/marshalling.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "base/status_macros.h"

namespace tessera::train {
namespace {

constexpr std::string_view kConfig = "config";

// Describes the values that a T accepts, for an error message.
template <typename T>
constexpr std::string_view Expected() {
  if (std::is_same_v<T, bool>) return "expected true or false";
  if (std::is_same_v<T, int64_t>) {
    return "expected a whole number, -2^63 to 2^63-1";
  }
  if (std::is_same_v<T, double>) return "expected a number such as 3e-4";
  return "expected names separated by commas, none of them empty";
}

// Parses the text of a flag. A number of bytes may have a unit.
template <typename T>
absl::Status ParseValue(const SettingsField& field, std::string_view text,
                        T& value) {
  std::string ignored;
  bool parses = absl::ParseFlag(text, &value, &ignored);
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    parses = parses && !absl::c_linear_search(value, "");
  } else if constexpr (std::is_same_v<T, int64_t>) {
    if (!parses && absl::EndsWith(field.name, "_bytes")) {
      TESSERA_ASSIGN_OR_RETURN(const ByteSize size, ParseByteSize(text),
                               RefuseFlag(field.name, text, _.message()));
      value = size.bytes();
      return absl::OkStatus();
    }
  }
  return parses ? absl::OkStatus()
                : RefuseFlag(field.name, text, Expected<T>());
}

// Sets a field from the text of its flag.
absl::Status SetFieldFromText(const SettingsField& field, std::string_view text,
                              Settings& settings) {
  return std::visit(
      [&](const auto& member) -> absl::Status {
        auto value = GetField(member, settings);
        TESSERA_RETURN_IF_ERROR(ParseValue(field, text, value));
        return SetField(value, member, settings);
      },
      field.member);
}

}  // namespace

tools::Flag SettingsFlags::FlagOf(const SettingsField& field) {
  return {.name = field.name,
          .help = field.help,
          .default_value = FieldText(field.name, Settings()),
          .is_boolean = std::holds_alternative<bool Settings::*>(field.member),
          .set = [this,
                  &field](std::string_view text) { return Give(field, text); },
          .section = field.section,
          .is_common = field.is_common};
}

std::vector<tools::Flag> SettingsFlags::Flags() {
  std::vector<tools::Flag> flags = {
      {.name = kConfig,
       .help = "JSON file of settings, which the other flags override",
       .set =
           [this](std::string_view path) {
             config_ = path;
             return absl::OkStatus();
           },
       .is_common = true}};
  for (const SettingsField& field : SettingsFields()) {
    flags.push_back(FlagOf(field));
  }
  return flags;
}

std::vector<tools::Flag> SettingsFlags::Flags(
    std::initializer_list<std::string_view> names) {
  std::vector<tools::Flag> flags;
  for (const std::string_view name : names) {
    flags.push_back(FlagOf(*FindSettingsField(name)));
    flags.back().is_common = false;
    flags.back().section = "";
  }
  return flags;
}

absl::Status SettingsFlags::Give(const SettingsField& field,
                                 std::string_view text) {
  Settings scratch;
  TESSERA_RETURN_IF_ERROR(SetFieldFromText(field, text, scratch));
  given_.emplace_back(&field, text);
  return absl::OkStatus();
}

bool SettingsFlags::IsGiven(std::string_view name) const {
  return absl::c_any_of(
      given_, [&](const auto& one) { return one.first->name == name; });
}

// A given number of steps overrides the number of tokens of a file.
absl::Status SettingsFlags::ResolveTokens(Settings& settings) const {
  if (IsGiven("steps")) {
    if (IsGiven("train_tokens") && settings.train_tokens != 0) {
      return RefuseFlag(
          "train_tokens", settings.train_tokens,
          absl::StrCat("determines the number of steps, and "
                       "--steps=",
                       settings.steps, " is also given; use only one of them"));
    }
    settings.train_tokens = 0;
  }
  const int64_t steps = StepsOfTokens(settings.train_tokens, settings);
  if (steps > 0) settings.steps = steps;
  return absl::OkStatus();
}

absl::StatusOr<Settings> SettingsFlags::Read() const {
  Settings settings;
  if (!config_.empty()) {
    absl::StatusOr<Settings> file = ReadSettings(config_);
    TESSERA_RETURN_IF_ERROR(tools::FlagError(kConfig, config_, file.status()));
    settings = *std::move(file);
  }
  for (const auto& [field, text] : given_) {
    TESSERA_RETURN_IF_ERROR(SetFieldFromText(*field, text, settings));
  }
  TESSERA_RETURN_IF_ERROR(ResolveTokens(settings));
  return settings;
}

}  // namespace tessera::train
