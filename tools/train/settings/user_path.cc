#include "tools/train/settings/user_path.h"

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tessera::train {

std::string UserPath(std::string_view path) {
  const char* const directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (directory == nullptr || *directory == '\0' || path.empty() ||
      absl::StartsWith(path, "/")) {
    return std::string(path);
  }
  return absl::StrCat(directory, "/", path);
}

}  // namespace tessera::train
