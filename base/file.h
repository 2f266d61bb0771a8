// Reads whole files of bounded size and parts of open files, and writes whole
// files atomically.
//
//   TESSERA_RETURN_IF_ERROR(WriteFile("plan.json", text));
//   TESSERA_ASSIGN_OR_RETURN(std::string text, ReadFile("plan.json", 1 << 20));
#ifndef TESSERA_BASE_FILE_H_
#define TESSERA_BASE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// Returns the file's bytes. Errors: NotFound, PermissionDenied or another code
// with the path and the system's message; InvalidArgument if the file is larger
// than `max_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path,
                                     int64_t max_bytes);

// Fills `to` with the bytes of the file from `offset` on. DataLoss if the file
// ends before, because it was truncated after its size was read; otherwise the
// system's error.
absl::Status ReadAt(int fd, int64_t offset, std::span<std::byte> to);

// Existence and kind of what a path refers to, through symbolic links; false if
// that cannot be determined.
bool PathExists(const std::string& path);
bool IsDirectory(const std::string& path);

// Replaces the file by `contents` with an AtomicFile: after a crash or an
// error, `path` holds the old bytes or the new ones.
absl::Status WriteFile(const std::string& path, std::string_view contents);

}  // namespace tessera

#endif  // TESSERA_BASE_FILE_H_
