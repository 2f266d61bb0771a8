#include "tools/launch/launch_command.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

// "openmpi", "mpich", or "" without MPI; set by the BUILD file.
#ifndef TESSERA_MPI_FLAVOR
#define TESSERA_MPI_FLAVOR ""
#endif

namespace tessera::tools {

namespace {

constexpr std::string_view kFlavor = TESSERA_MPI_FLAVOR;

constexpr std::array<std::string_view, 12> kLauncherPrefixes = {
    "RANK=",         "WORLD_SIZE=",
    "LOCAL_RANK=",   "LOCAL_WORLD_SIZE=",
    "GROUP_RANK=",   "OMPI_",
    "PMIX_",         "PMI_",
    "SLURM_PROCID=", "TESSERA_INHERITED_SOCKETS=",
    "PET_",          "TESSERA_LAUNCHER="};

absl::StatusOr<std::string> FindMpirun(
    const std::vector<std::string_view>& names) {
  const char* path = std::getenv("PATH");
  const std::string directories = path == nullptr ? "/usr/bin:/bin" : path;
  for (std::string_view name : names) {
    if (auto found = FindProgram(name, directories); found.ok()) return found;
  }
  return absl::NotFoundError(absl::StrCat("there is no ", names[0],
                                          " in PATH; install ", kFlavor,
                                          " or leave mpi out of --engine"));
}

// Open MPI creates sockets in TMPDIR, and their path must be short.
void ShortenTemporaryDirectory(std::vector<std::string>* environment) {
  for (std::string& entry : *environment) {
    if (absl::StartsWith(entry, "TMPDIR=") && entry.size() > 40) {
      entry = "TMPDIR=/tmp";
    }
  }
}

}  // namespace

absl::StatusOr<std::string> OwnPath() {
  std::error_code error;
  std::string path =
      std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (!error) return path;
  return absl::UnavailableError(
      "cannot read /proc/self/exe, the path of this program");
}

std::vector<std::string> CleanEnvironment() {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const bool is_launchers =
        std::any_of(kLauncherPrefixes.begin(), kLauncherPrefixes.end(),
                    [&](std::string_view prefix) {
                      return absl::StartsWith(*entry, prefix) &&
                             !absl::StartsWith(*entry, "OMPI_MCA_");
                    });
    if (!is_launchers) environment.emplace_back(*entry);
  }
  return environment;
}

absl::StatusOr<LaunchCommand> MpirunCommand(
    int64_t world, const std::string& program,
    const std::vector<std::string>& arguments) {
  if (kFlavor.empty()) {
    return absl::NotFoundError(
        "this binary was built without MPI; leave mpi out of --engine");
  }
  const bool is_openmpi = kFlavor == "openmpi";
  LaunchCommand command;
  TESSERA_ASSIGN_OR_RETURN(
      command.path,
      is_openmpi ? FindMpirun({"mpirun.openmpi", "mpirun"})
                 : FindMpirun({"mpiexec.mpich", "mpiexec.hydra", "mpiexec"}));
  command.arguments = {command.path};
  command.environment = CleanEnvironment();
  ShortenTemporaryDirectory(&command.environment);
  if (is_openmpi) {
    command.arguments.insert(command.arguments.end(),
                             {"--mca", "btl", "self,vader,tcp"});
    for (std::string_view entry :
         {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
          "OMPI_MCA_rmaps_base_oversubscribe=1"}) {
      command.environment.emplace_back(entry);
    }
  }
  command.arguments.insert(command.arguments.end(),
                           {"-n", absl::StrCat(world), program});
  command.arguments.insert(command.arguments.end(), arguments.begin(),
                           arguments.end());
  return command;
}

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
