// Reads Settings from the command line.
//
//   int main(int argc, char** argv) {
//     SettingsFlags flags;
//     return tools::RunTool(
//         {.name = "train", ..., .flags = flags.Flags()}, argc, argv,
//         [&] () -> absl::Status {
//           TESSERA_ASSIGN_OR_RETURN(Settings settings, flags.Read());
//           TESSERA_RETURN_IF_ERROR(CheckSettings(settings));
//           ...
//         });
//   }
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_FLAGS_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_FLAGS_H_

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/cli/cli.h"
#include "tools/train/settings/settings.h"
#include "tools/train/settings/settings_table.h"

namespace tessera::train {

// The values of --config and of the flags of the fields that were given.
class SettingsFlags {
 public:
  // Flags that store their values in this object, which must outlive them:
  // --config and one per field with the field's name, default and help, in the
  // order of SettingsFields().
  std::vector<tools::Flag> Flags();
  // Only the flags of these fields.
  std::vector<tools::Flag> Flags(std::initializer_list<std::string_view> names);

  // Reads the file of --config, or takes the defaults,
  // and overrides them with every flag that was given, even if its value equals
  // the default. CheckSettings checks whether the values are valid. Errors are
  // InvalidArgument and name the flag.
  absl::StatusOr<Settings> Read() const;

  // True if the flag of this name was given, or a file of settings, which
  // contains all of them.
  bool IsChosen(std::string_view name) const {
    return !config_.empty() || IsGiven(name);
  }

 private:
  tools::Flag FlagOf(const SettingsField& field);
  absl::Status Give(const SettingsField& field, std::string_view text);
  bool IsGiven(std::string_view name) const;
  absl::Status ResolveTokens(Settings& settings) const;

  std::string config_;
  // In the order of the command line. Every text parses.
  std::vector<std::pair<const SettingsField*, std::string>> given_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_FLAGS_H_
