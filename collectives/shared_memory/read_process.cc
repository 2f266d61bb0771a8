#include "collectives/shared_memory/read_process.h"

#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tessera::collectives {

bool MayReadProcess(pid_t pid) {
  // Who may not is told so before anything is looked at; nothing is mapped at
  // the first page.
  std::byte byte;
  const iovec local = {&byte, 1};
  const iovec remote = {nullptr, 1};
  return process_vm_readv(pid, &local, 1, &remote, 1, 0) >= 0 ||
         errno == EFAULT;
}

absl::Status ReadProcess(pid_t pid, uintptr_t address, std::byte* to,
                         int64_t bytes) {
  int64_t done = 0;
  while (done < bytes) {
    const auto left = static_cast<size_t>(bytes - done);
    const iovec local = {to + done, left};
    const iovec remote = {
        reinterpret_cast<void*>(address + static_cast<uintptr_t>(done)), left};
    const ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (got <= 0) {
      if (got < 0 && errno == EINTR) continue;
      return absl::UnavailableError(absl::StrCat(
          "reading ", bytes, " bytes of process ", pid, " stopped after ", done,
          ": ", got < 0 ? std::strerror(errno) : "no more"));
    }
    done += got;
  }
  return absl::OkStatus();
}

}  // namespace tessera::collectives
