// Settings from the command line.
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
// Linking this library declares an Abseil flag for every field of Settings and
// of its `parallel`, with its name and default, and --config.
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_FLAGS_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_FLAGS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// --config, then one for each field, in the order of Settings.
std::vector<std::string_view> TrainFlags();

// "--quiet" becomes "--quiet=true", as tools::ParseFlags wants of flags that
// remember whether they were given; likewise all yes-or-no fields. What is the
// value of the flag before it stays as it is.
std::vector<std::string> TrainArguments(
    const std::vector<std::string>& arguments);

// The file of --config (a path as UserPath takes it), or the defaults where
// there is none, with every flag that was given on top. Only what a text cannot
// say (--mesh=dp0) is refused, the rest is for CheckSettings. Errors are
// InvalidArgument and name the flag.
absl::StatusOr<Settings> SettingsFromFlags();

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_FLAGS_H_
