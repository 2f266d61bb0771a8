#include "tools/launch/program_path.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera::tools {
namespace {

constexpr size_t kShownLength = 200;

// 0, or the errno that executing the file would give.
int ExecutionError(const std::string& path) {
  struct stat file;
  if (stat(path.c_str(), &file) != 0) return errno;
  if (S_ISDIR(file.st_mode)) return EISDIR;
  return access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

absl::Status Refusal(std::string_view program, std::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat(
      "program \"", program.substr(0, kShownLength), "\": ", reason));
}

absl::Status CannotExecute(std::string_view program, int error) {
  return Refusal(
      program,
      absl::StrCat(strerror(error),
                   error == EACCES ? "; is it executable (chmod +x)?" : ""));
}

}  // namespace

absl::StatusOr<std::string> FindProgram(std::string_view program,
                                        std::string_view search_path) {
  if (program.empty()) return Refusal(program, "the name is empty");
  if (program.find('/') != std::string_view::npos) {
    const int error = ExecutionError(std::string(program));
    if (error != 0) return CannotExecute(program, error);
    return std::string(program);
  }
  int first_error = 0;
  for (std::string_view directory : absl::StrSplit(search_path, ':')) {
    const std::string path =
        absl::StrCat(directory.empty() ? "." : directory, "/", program);
    const int error = ExecutionError(path);
    if (error == 0) return path;
    if (error == EACCES && first_error == 0) first_error = error;
  }
  if (first_error != 0) return CannotExecute(program, first_error);
  return Refusal(program, absl::StrCat("not found in PATH=",
                                       search_path.substr(0, kShownLength),
                                       "; a program of this directory is ./",
                                       program.substr(0, kShownLength)));
}

}  // namespace tessera::tools
