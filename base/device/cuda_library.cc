#include "base/device/cuda_library.h"

#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

std::vector<std::string> PlacesOf(std::string_view file) {
  std::vector<std::string> places = {std::string(file)};
  const auto add = [&](std::string_view root) {
    for (const char* const directory : {"lib64", "lib"}) {
      places.push_back(absl::StrCat(root, "/", directory, "/", file));
    }
  };
  for (const char* const variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* const root = std::getenv(variable)) add(root);
  }
  add("/usr/local/cuda");
  return places;
}

}  // namespace

absl::StatusOr<const SharedLibrary*> OpenCudaLibrary(std::string_view file) {
  // Never destroyed, because CUDA's libraries have threads and must not be
  // closed.
  static absl::Mutex& mutex = *new absl::Mutex;
  static auto& libraries = *new std::map<std::string, SharedLibrary>;
  const absl::MutexLock lock(&mutex);
  const auto found = libraries.find(std::string(file));
  if (found != libraries.end()) return &found->second;
  absl::StatusOr<SharedLibrary> library = SharedLibrary::Open(PlacesOf(file));
  TESSERA_RETURN_IF_ERROR(
      library.status(),
      Annotate(_, absl::StrCat(file,
                               " cannot be opened; install it, or put its "
                               "directory into LD_LIBRARY_PATH")));
  return &libraries.emplace(file, *std::move(library)).first->second;
}

}  // namespace tessera
