// SharedLibrary: a library that is loaded at run time, so that programs which
// do not use it start without it and spend no memory on it.
//
//   TESSERA_ASSIGN_OR_RETURN(SharedLibrary library,
//                            SharedLibrary::Open({{"libcudnn.so.9"}}));
//   decltype(&::cudnnCreate) create = nullptr;
//   TESSERA_RETURN_IF_ERROR(library.Require("cudnnCreate", create));
#ifndef TESSERA_BASE_OS_SHARED_LIBRARY_H_
#define TESSERA_BASE_OS_SHARED_LIBRARY_H_

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

class SharedLibrary {
 public:
  // Opens the first of `names` that the loader can open. A name without a slash
  // is searched like a program's own libraries (LD_LIBRARY_PATH, the system's
  // directories). NotFound with the loader's reason for each name.
  static absl::StatusOr<SharedLibrary> Open(std::span<const std::string> names);

  // The name under which it was opened.
  const std::string& name() const { return name_; }

  // Sets `function`, or leaves it null if the library does not have it. Valid
  // while this object lives.
  template <typename Function>
  bool Find(const char* symbol, Function*& function) const {
    function = reinterpret_cast<Function*>(Address(symbol));
    return function != nullptr;
  }
  // The same; Unimplemented if the library does not have it.
  template <typename Function>
  absl::Status Require(const char* symbol, Function*& function) const {
    return Find(symbol, function) ? absl::OkStatus() : Missing(symbol);
  }

 private:
  struct Close {
    void operator()(void* handle) const;
  };

  SharedLibrary(std::string name, void* handle)
      : name_(std::move(name)), handle_(handle) {}

  void* Address(const char* symbol) const;
  absl::Status Missing(const char* symbol) const;

  std::string name_;
  std::unique_ptr<void, Close> handle_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_OS_SHARED_LIBRARY_H_
