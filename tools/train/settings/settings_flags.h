// Reads Settings from the command line.
//
//   int main(int argc, char** argv) {
//     return tools::RunTool(
//         {.name = "train", ..., .flags = TrainFlags()},
//         TrainArguments({argv + 1, argv + argc}), std::cout, std::cerr,
//         [] () -> absl::Status {
//           TESSERA_ASSIGN_OR_RETURN(Settings settings, SettingsFromFlags());
//           TESSERA_RETURN_IF_ERROR(CheckSettings(settings));
//           ...
//         });
//   }
//
// Linking this library defines --config and an Abseil flag for every field of
// Settings, including `parallel`, with the field's name and default.
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_FLAGS_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_FLAGS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// The names of --config and of the flag of each field, in the order of
// Settings.
std::vector<std::string_view> TrainFlags();

// Replaces "--quiet" by "--quiet=true", and likewise for all boolean fields, as
// tools::ParseFlags requires for flags that record whether they were given.
// Does not change an argument that is the value of the previous flag.
std::vector<std::string> TrainArguments(
    const std::vector<std::string>& arguments);

// Reads the file of --config (relative to UserPath), or takes the defaults, and
// overrides them with every flag that was given. Rejects only values that do
// not parse (--mesh=dp0); CheckSettings checks the rest. Errors are
// InvalidArgument and name the flag.
absl::StatusOr<Settings> SettingsFromFlags();

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_FLAGS_H_
