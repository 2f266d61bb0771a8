// TemporaryFile: a file that gets its name when it is complete.
#ifndef TESSERA_TOOLS_MODEL_FILES_TEMPORARY_FILE_H_
#define TESSERA_TOOLS_MODEL_FILES_TEMPORARY_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"

namespace tessera::model_files {

class TemporaryFile {
 public:
  // A new file beside `path` with room for `bytes` bytes. The system's code
  // where it cannot be made, ResourceExhausted where the disk is full.
  static absl::StatusOr<TemporaryFile> Create(const std::string& path,
                                              int64_t bytes);

  TemporaryFile(TemporaryFile&& other) noexcept { *this = std::move(other); }
  TemporaryFile& operator=(TemporaryFile&& other) noexcept;
  // Removes the file unless it has been committed.
  ~TemporaryFile();

  const std::string& path() const { return path_; }
  bool committed() const { return !fd_.valid(); }

  absl::Status Write(int64_t offset, std::span<const std::byte> bytes);

  // Syncs the file and renames it to path(), then syncs the directory.
  absl::Status Commit();

 private:
  TemporaryFile(std::string path, std::string temporary, UniqueFd fd)
      : path_(std::move(path)),
        temporary_(std::move(temporary)),
        fd_(std::move(fd)) {}

  absl::Status SystemError(const char* action) const;

  std::string path_;
  std::string temporary_;  // Empty: nothing to remove.
  UniqueFd fd_;
};

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_TEMPORARY_FILE_H_
