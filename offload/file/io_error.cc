#include "offload/file/io_error.h"

#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"

namespace tessera::offload {

absl::Status IoError(int error, std::string_view what, int64_t bytes,
                     int64_t offset, std::string_view path) {
  const absl::Status status = absl::ErrnoToStatus(
      error, absl::StrCat(what, " of ", bytes, " bytes at offset ", offset,
                          " of file ", path));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(
          absl::StrCat(status.message(),
                       "; free space on the device, raise its limit, or lower "
                       "the tier's budget"));
    case ENOMEM:
      return absl::ResourceExhaustedError(
          absl::StrCat(status.message(),
                       "; the kernel has no memory for the request: free "
                       "memory, or lower the queue depth"));
    case EIO:
      return absl::DataLossError(status.message());
    default:
      return status;
  }
}

}  // namespace tessera::offload
