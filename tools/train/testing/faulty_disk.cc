// A disk that fails, for tests. Preloaded (LD_PRELOAD) into //tools/train, it
// fails writes to checkpoints while a file exists that names the error:
//
//   TESSERA_TEST_DISK=/tmp/fault   # with the text 28, which is ENOSPC
//
// A full disk first takes a part of the bytes, as a real one does.
#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

std::string PathOf(int fd) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = readlink(link.c_str(), path, sizeof(path));
  return size < 0 ? "" : std::string(path, static_cast<size_t>(size));
}

// The error that a write to `fd` has; 0: none.
int ErrorOf(int fd) {
  static const char* const fault = std::getenv("TESSERA_TEST_DISK");
  if (fault == nullptr || access(fault, R_OK) != 0) return 0;
  if (PathOf(fd).find("/checkpoints/") == std::string::npos) return 0;
  std::FILE* const file = std::fopen(fault, "re");
  if (file == nullptr) return 0;
  int error = 0;
  if (std::fscanf(file, "%d", &error) != 1) error = 0;
  std::fclose(file);
  return error;
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" ssize_t write(int fd, const void* bytes, size_t size) {
  static auto* const next = Next<ssize_t(int, const void*, size_t)>("write");
  const int kept = errno;
  const int error = ErrorOf(fd);
  errno = kept;
  if (error == ENOSPC && size > 4096) return next(fd, bytes, size / 2);
  if (error == 0) return next(fd, bytes, size);
  errno = error;
  return -1;
}

extern "C" int fsync(int fd) {
  static auto* const next = Next<int(int)>("fsync");
  const int error = ErrorOf(fd);
  if (error != EIO) return next(fd);
  errno = error;
  return -1;
}
