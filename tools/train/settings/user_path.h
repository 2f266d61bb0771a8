// UserPath: a path as the person who gave the command means it.
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_USER_PATH_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_USER_PATH_H_

#include <string>
#include <string_view>

namespace tessera::train {

// A relative path is one of BUILD_WORKING_DIRECTORY, where that is set: the
// directory in which `bazel run` was called, which starts programs in another.
// All else is as it was, "" too.
std::string UserPath(std::string_view path);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_USER_PATH_H_
