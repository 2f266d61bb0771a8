#include "base/os/shared_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace tessera {

absl::StatusOr<SharedLibrary> SharedLibrary::Open(
    std::span<const std::string> names) {
  std::string reasons;
  for (const std::string& name : names) {
    if (void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return SharedLibrary(name, handle);
    }
    const char* const reason = dlerror();
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ",
                    reason != nullptr ? reason : name);
  }
  return absl::NotFoundError(reasons);
}

void SharedLibrary::Close::operator()(void* handle) const { dlclose(handle); }

void* SharedLibrary::Address(const char* symbol) const {
  return dlsym(handle_.get(), symbol);
}

absl::Status SharedLibrary::Missing(const char* symbol) const {
  return absl::UnimplementedError(absl::StrCat(name_, " has no ", symbol));
}

}  // namespace tessera
