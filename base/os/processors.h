// The processors that a thread may run on, their number, their socket, and a
// spin-loop hint.
#ifndef TESSERA_BASE_OS_PROCESSORS_H_
#define TESSERA_BASE_OS_PROCESSORS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace tessera {

// Spin-loop hint: yields to the other hyperthread and saves power.
inline void SpinPause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// The number of processors in the affinity mask, or fewer if the cgroup's quota
// is less; at least 1.
int64_t AvailableProcessors();

// The processors of the calling thread's affinity mask, ascending.
std::vector<int> AllowedProcessors();

// The socket (the kernel's physical_package_id) that holds all of `processors`.
// Nullopt if `processors` is empty, spans several sockets, or the kernel does
// not report the socket. `directory` is in sysfs; tests replace it.
std::optional<int64_t> SocketOf(
    const std::vector<int>& processors,
    const std::string& directory = "/sys/devices/system/cpu");

// Divides `processors` into `count` shares of consecutive processors, as evenly
// as possible, and returns share `index`. If there are fewer processors than
// shares, each share is one processor, assigned in turn.
std::vector<int> ShareOfProcessors(const std::vector<int>& processors,
                                   int64_t index, int64_t count);

// Binds the calling thread, and threads that it starts, to `processors`.
absl::Status BindThisThread(const std::vector<int>& processors);

// The quota of a cgroup v2 `cpu.max` ("200000 100000" is 2), rounded up; 0 if
// there is no quota ("max 100000") or the text is malformed.
int64_t ParseCpuMax(std::string_view text);

}  // namespace tessera

#endif  // TESSERA_BASE_OS_PROCESSORS_H_
