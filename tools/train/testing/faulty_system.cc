// A disk that fails and a clock that jumps, for tests. Preloaded (LD_PRELOAD)
// into //tools/train, it fails writes to checkpoints with the error in a file,
// and sets the wall clock forward by the seconds in another one:
//
//   TESSERA_TEST_DISK=/tmp/disk    # with the text 28, which is ENOSPC
//   TESSERA_TEST_CLOCK=/tmp/clock  # with the text -3600
//
// A full disk first takes a part of the bytes, as a real one does. Without the
// files nothing changes.
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
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

// The number in the file that an environment variable names; otherwise 0.
int NumberIn(const char* path) {
  if (path == nullptr) return 0;
  std::FILE* const file = std::fopen(path, "re");
  if (file == nullptr) return 0;
  int number = 0;
  if (std::fscanf(file, "%d", &number) != 1) number = 0;
  std::fclose(file);
  return number;
}

// The error that a write to `fd` has; 0: none.
int ErrorOf(int fd) {
  static const char* const path = std::getenv("TESSERA_TEST_DISK");
  if (path == nullptr || access(path, R_OK) != 0) return 0;
  const bool is_faulty = PathOf(fd).find("/checkpoints/") != std::string::npos;
  return is_faulty ? NumberIn(path) : 0;
}

// The seconds by which the wall clock has jumped.
int Jump() {
  static const char* const path = std::getenv("TESSERA_TEST_CLOCK");
  const int kept = errno;
  const int seconds = NumberIn(path);
  errno = kept;
  return seconds;
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

extern "C" int clock_gettime(clockid_t clock, timespec* now) {
  static auto* const next = Next<int(clockid_t, timespec*)>("clock_gettime");
  const int result = next(clock, now);
  const bool is_wall =
      clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (result == 0 && is_wall) now->tv_sec += Jump();
  return result;
}

extern "C" int gettimeofday(timeval* now, void* zone) {
  static auto* const next = Next<int(timeval*, void*)>("gettimeofday");
  const int result = next(now, zone);
  if (result == 0) now->tv_sec += Jump();
  return result;
}

extern "C" time_t time(time_t* now) {
  static auto* const next = Next<time_t(time_t*)>("time");
  const time_t result = next(nullptr) + Jump();
  if (now != nullptr) *now = result;
  return result;
}
