// Opening files for offload: without the page cache where the file system
// allows it, and leaving nothing behind where nothing is to be kept.
#ifndef TESSERA_OFFLOAD_FILE_OPEN_FILE_H_
#define TESSERA_OFFLOAD_FILE_OPEN_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "offload/file/async_file.h"

namespace tessera::offload {

struct OpenedFile {
  UniqueFd fd;
  std::string path;  // for messages; of a scratch file "DIRECTORY/(scratch)"
  // As the kernel states it (statx, STATX_DIOALIGN); where it cannot, 4096,
  // which must then pass a trial. 1 and 1 where O_DIRECT is not in use.
  IoAlignment alignment;
  bool direct = false;
  std::string why_not_direct;
};

// A file in `directory` that has no name: it is gone with its descriptor,
// after SIGKILL too (O_TMPFILE; unlinked at once where the file system has
// none).
absl::StatusOr<OpenedFile> OpenScratchFile(const std::string& directory,
                                           bool want_direct);

// The file of this name, made where there is none, and locked.
// FailedPrecondition where another process (or another tier of this one) still
// has it after `lock_wait`: the kernel holds on to the files of a killed
// process until its last requests are over, which takes milliseconds.
absl::StatusOr<OpenedFile> OpenKeptFile(const std::string& path,
                                        bool want_direct,
                                        absl::Duration lock_wait);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_OPEN_FILE_H_
