#include "tools/train/launch/run_directory.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "offload/optimizer/parameter_range.h"
#include "tools/cli/cli.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/settings/settings.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/layout/state_format.h"

namespace tessera::train {

namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::string> MakeTemporary() {
  const char* parent = std::getenv("TMPDIR");
  std::string path = absl::StrCat(
      parent == nullptr || *parent == '\0' ? "/tmp" : parent, "/train-XXXXXX");
  if (mkdtemp(path.data()) == nullptr) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("cannot create a directory such as ", path,
                            "; name one with --run_dir=DIR"));
  }
  return path;
}

absl::Status Unusable(const std::string& path, int error) {
  return absl::ErrnoToStatus(
      error, absl::StrCat("--run_dir=", path,
                          ": checkpoints cannot be written there"));
}

absl::Status RefuseCheckpoints(const Settings& settings,
                               const RunDirectory& run) {
  if (!settings.resume.empty() || run.LastCheckpoint().empty()) {
    return absl::OkStatus();
  }
  return tools::FlagError(
      "run_dir", run.path(),
      absl::InvalidArgumentError(absl::StrCat(
          "it has a checkpoint of an earlier run, ", run.LastCheckpoint(),
          "; continue it with --resume=latest, or name another directory")));
}

}  // namespace

std::string RunDirectory::PathOf(const Settings& settings) {
  if (settings.run_dir.empty()) return "";
  std::error_code error;
  const fs::path path = fs::absolute(settings.run_dir, error);
  return error ? settings.run_dir : path.lexically_normal().string();
}

absl::StatusOr<RunDirectory> RunDirectory::Create(const Settings& settings) {
  if (settings.run_dir.empty()) {
    TESSERA_ASSIGN_OR_RETURN(std::string path, MakeTemporary());
    RunDirectory run(std::move(path));
    run.is_temporary_ = true;
    return run;
  }
  const std::string path = PathOf(settings);
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return Unusable(settings.run_dir, error.value());
  if (access(path.c_str(), W_OK | X_OK) != 0) {
    return Unusable(settings.run_dir, errno);
  }
  RunDirectory run(path);
  TESSERA_RETURN_IF_ERROR(RefuseCheckpoints(settings, run));
  return run;
}

std::string RunDirectory::LastCheckpoint() const {
  const auto found = zero3::LatestCheckpoint(checkpoints());
  return found.ok() ? found->path : "";
}

absl::StatusOr<std::string> RunDirectory::BestCheckpoint() const {
  TESSERA_ASSIGN_OR_RETURN(
      const zero3::FoundCheckpoint best,
      zero3::LeastCheckpoint(checkpoints(), std::string(kEvalLossKey)),
      Annotate(_, "no validated checkpoint; train with --keep_best"));
  return best.path;
}

std::string RunDirectory::NextFlight() const {
  if (is_temporary_) return "";
  std::error_code error;
  int64_t number = 1;
  const auto path = [&] { return absl::StrCat(path_, "/flight/", number); };
  while (fs::exists(path(), error)) ++number;
  return path();
}

bool RunDirectory::CleanUp() const {
  std::error_code ignored;
  fs::remove_all(exchange(), ignored);
  std::vector<fs::path> unfinished;
  for (const auto& entry : fs::directory_iterator(checkpoints(), ignored)) {
    const std::string name = entry.path().filename().string();
    if (absl::EndsWith(name, ".writing") || absl::EndsWith(name, ".removing")) {
      unfinished.push_back(entry.path());
    }
  }
  for (const fs::path& path : unfinished) fs::remove_all(path, ignored);
  if (!is_temporary_ || !LastCheckpoint().empty()) return true;
  fs::remove_all(path_, ignored);
  return false;
}

namespace {

absl::Status CheckMoments(const Settings& settings, const SavedRun& saved) {
  const zero3::MomentKinds moments = saved.moments();
  if (saved.has_zero_moments() || moments.count == 0) return absl::OkStatus();
  for (const char* const name : {"f32", "bf16", "int8"}) {
    TESSERA_ASSIGN_OR_RETURN(const offload::MomentFormat format,
                             offload::ParseMomentFormat(name));
    if (format != moments.format || settings.moments == name) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "its moments are ", name, ", and --moments=", settings.moments,
        "; give --moments=", name));
  }
  return absl::OkStatus();
}

absl::Status CheckSameRunAt(const std::string& path, const Settings& settings,
                            const RunIdentity& identity) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<SavedRun> saved,
                           SavedRun::Open(path));
  TESSERA_RETURN_IF_ERROR(
      CheckSameRun(saved->identity(), saved->steps(), identity),
      Annotate(_, path));
  return Annotate(CheckMoments(settings, *saved), path);
}

// The checkpoint that --resume selects; "" if there is none yet.
absl::StatusOr<std::string> SelectedPath(const Settings& settings) {
  std::string path;
  if (settings.resume == "best") {
    TESSERA_ASSIGN_OR_RETURN(
        path, RunDirectory(RunDirectory::PathOf(settings)).BestCheckpoint());
  } else if (settings.resume != "latest") {
    TESSERA_ASSIGN_OR_RETURN(path, ResolveCheckpoint(settings.resume));
  } else if (settings.run_dir.empty()) {
    return absl::InvalidArgumentError(
        "it selects the newest checkpoint of --run_dir, which is not given");
  } else {
    path = RunDirectory(RunDirectory::PathOf(settings)).LastCheckpoint();
  }
  return path;
}

absl::StatusOr<std::string> Find(const Settings& settings,
                                 const RunIdentity& identity) {
  TESSERA_ASSIGN_OR_RETURN(std::string path, SelectedPath(settings));
  if (path.empty()) return path;
  TESSERA_RETURN_IF_ERROR(CheckSameRunAt(path, settings, identity));
  return path;
}

absl::StatusOr<DType> DTypeAt(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<SavedRun> saved,
                           SavedRun::Open(path));
  return saved->dtype();
}

}  // namespace

void FollowCheckpoint(Settings& settings) {
  if (settings.resume.empty()) return;
  const absl::StatusOr<std::string> path = SelectedPath(settings);
  if (!path.ok() || path->empty()) return;
  const absl::StatusOr<DType> dtype = DTypeAt(*path);
  if (dtype.ok()) settings.parallel.dtype = *dtype;
}

absl::StatusOr<std::string> ConversionNotice(const Settings& settings,
                                             const std::string& path) {
  if (path.empty()) return "";
  TESSERA_ASSIGN_OR_RETURN(const DType saved, DTypeAt(path));
  const DType now = settings.parallel.dtype;
  if (saved == now) return "";
  return absl::StrCat(
      "--dtype=", DTypeFlag(settings.parallel), ": the weights of ", path,
      " are ", DTypeName(saved), "; ",
      now == DType::kF32
          ? "their master weights are used, and nothing is rounded"
          : "they are rounded for the computation, and the master weights of "
            "those that are trained keep them exactly");
}

absl::StatusOr<std::string> FindResumePoint(const Settings& settings,
                                            const RunIdentity& identity) {
  if (settings.resume.empty()) return "";
  absl::StatusOr<std::string> found = Find(settings, identity);
  if (found.ok()) return found;
  return tools::FlagError("resume", settings.resume, found.status());
}

}  // namespace tessera::train
