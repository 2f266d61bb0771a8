#include "tools/train/loop/repository_texts.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr int kMostNames = 100'000;
constexpr std::array<std::string_view, 3> kEndings = {".md", ".h", ".cc"};
constexpr std::string_view kCarried =
    "tessera/tools/train/data/repository_texts_file.txt";

// In the order in which they are taken, with their sizes.
struct FoundText {
  size_t ending = 0;
  std::string path;
  int64_t bytes = 0;

  friend auto operator<=>(const FoundText&, const FoundText&) = default;
};

bool IsPassedOver(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  std::error_code error;
  return absl::StartsWith(name, ".") || absl::StartsWith(name, "bazel-") ||
         entry.is_symlink(error);
}

// The place of the name's ending, or as many as there are.
size_t EndingOf(const fs::path& path) {
  const auto* const found =
      std::find(kEndings.begin(), kEndings.end(), path.extension().string());
  return static_cast<size_t>(found - kEndings.begin());
}

void AddFile(const fs::directory_entry& entry, std::vector<FoundText>& found) {
  const size_t ending = EndingOf(entry.path());
  std::error_code error;
  if (ending == kEndings.size() || !entry.is_regular_file(error)) return;
  const auto bytes = static_cast<int64_t>(entry.file_size(error));
  const std::string path = entry.path().string();
  if (error || bytes == 0 || access(path.c_str(), R_OK) != 0) return;
  found.push_back({ending, path, bytes});
}

std::vector<FoundText> AllTextsBelow(const std::string& directory) {
  std::vector<FoundText> found;
  std::error_code error;
  fs::recursive_directory_iterator at(
      directory, fs::directory_options::skip_permission_denied, error);
  for (int names = 0;
       !error && names < kMostNames && at != fs::recursive_directory_iterator();
       ++names) {
    if (IsPassedOver(*at)) {
      at.disable_recursion_pending();
    } else {
      AddFile(*at, found);
    }
    at.increment(error);
  }
  std::sort(found.begin(), found.end());
  return found;
}

// As text::FindDataFiles tells them apart.
bool IsBinary(const std::string& path) {
  std::array<char, 8000> bytes;
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), bytes.size());
  char* const end = bytes.data() + file.gcount();
  return std::find(bytes.data(), end, '\0') != end;
}

// "" where it is not set.
std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string ProgramPath() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).string();
}

}  // namespace

std::vector<std::string> FindTextsBelow(const std::string& directory,
                                        int64_t most_bytes) {
  std::vector<std::string> paths;
  int64_t bytes = 0;
  for (FoundText& text : AllTextsBelow(directory)) {
    if (text.bytes > most_bytes - bytes) break;
    if (IsBinary(text.path)) continue;
    bytes += text.bytes;
    paths.push_back(std::move(text.path));
  }
  return paths;
}

RepositoryPlaces PlacesOfProcess() {
  return {.workspace = Environment("BUILD_WORKSPACE_DIRECTORY"),
          .runfiles = {Environment("RUNFILES_DIR"), Environment("TEST_SRCDIR"),
                       absl::StrCat(ProgramPath(), ".runfiles")}};
}

absl::StatusOr<std::vector<std::string>> FindRepositoryTexts(
    const RepositoryPlaces& places) {
  if (!places.workspace.empty()) {
    std::vector<std::string> paths =
        FindTextsBelow(places.workspace, kMostRepositoryBytes);
    if (!paths.empty()) return paths;
  }
  for (const std::string& root : places.runfiles) {
    const std::string path = absl::StrCat(root, "/", kCarried);
    if (root.empty() || access(path.c_str(), R_OK) != 0) continue;
    return std::vector<std::string>{path};
  }
  return absl::NotFoundError(
      "no data is named, and the repository's texts are not there: run with "
      "`bazel run`, keep the binary beside its .runfiles, or name texts such "
      "as --data=docs,src/*.cc");
}

}  // namespace tessera::train
