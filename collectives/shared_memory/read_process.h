// Reading the memory of another process, by the kernel: one copy and no memory
// in common (process_vm_readv(2)).
#ifndef TESSERA_COLLECTIVES_SHARED_MEMORY_READ_PROCESS_H_
#define TESSERA_COLLECTIVES_SHARED_MEMORY_READ_PROCESS_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace tessera::collectives {

// Whether this process may read that of `pid`: both are of one user, and no
// setting (Yama's ptrace_scope, a seccomp filter) forbids it.
bool MayReadProcess(pid_t pid);

// Copies `bytes` bytes at `address` of the process to `to`. Unavailable where
// the process is gone or has no such memory; what is at `to` is then undefined.
absl::Status ReadProcess(pid_t pid, uintptr_t address, std::byte* to,
                         int64_t bytes);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_SHARED_MEMORY_READ_PROCESS_H_
