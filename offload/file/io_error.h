// Errors of the system on a file, as statuses that say where.
#ifndef TESSERA_OFFLOAD_FILE_IO_ERROR_H_
#define TESSERA_OFFLOAD_FILE_IO_ERROR_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace tessera::offload {

// "write of 4096 bytes at offset 8192 of file /x/y: No space left on device".
// A full device, quota or file-size limit is ResourceExhausted, as is a kernel
// without memory; EIO is DataLoss; the rest as absl::ErrnoToStatus has it.
absl::Status IoError(int error, std::string_view what, int64_t bytes,
                     int64_t offset, std::string_view path);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_IO_ERROR_H_
