// Reads whole files of bounded size, and writes whole files atomically.
//
//   TESSERA_RETURN_IF_ERROR(WriteFile("plan.json", text));
//   TESSERA_ASSIGN_OR_RETURN(std::string text, ReadFile("plan.json", 1 << 20));
#ifndef TESSERA_BASE_FILE_H_
#define TESSERA_BASE_FILE_H_

#include <cstdint>
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

// Replaces the file by `contents` with an AtomicFile: after a crash or an
// error, `path` holds the old bytes or the new ones.
absl::Status WriteFile(const std::string& path, std::string_view contents);

}  // namespace tessera

#endif  // TESSERA_BASE_FILE_H_
