// AsyncFile: reads and writes ranges of one file completely, or returns an
// error with the file and the offset. OpenScratchFile opens the files of tiers.
//
//   AsyncFile file(engine, fd, path, alignment);
//   file.Write(0, bytes, [](absl::Status status) { ... });
//
// Short reads and writes are continued; EINTR and EAGAIN are retried. With
// O_DIRECT the caller must respect IoAlignment.
#ifndef TESSERA_OFFLOAD_FILE_ASYNC_FILE_H_
#define TESSERA_OFFLOAD_FILE_ASYNC_FILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "offload/file/io_engine.h"

namespace tessera::offload {

// Converts errno of a file operation to a status, such as
// "write of 4096 bytes at offset 8192 of file /x/y: No space left on device".
// A full device, quota, file-size limit or kernel memory is ResourceExhausted;
// EIO is DataLoss; all others are converted by absl::ErrnoToStatus.
absl::Status IoError(int error, std::string_view what, int64_t bytes,
                     int64_t offset, std::string_view path);

// Required alignment of memory addresses, and of offsets and lengths.
struct IoAlignment {
  int64_t memory = 1;
  int64_t offset = 1;
  friend bool operator==(const IoAlignment&, const IoAlignment&) = default;
};

// Safe for concurrent use. `engine` and the descriptor must outlive every
// request.
class AsyncFile {
 public:
  // Called on an engine thread; must be quick and must not wait for other
  // requests.
  using Done = std::function<void(absl::Status)>;

  AsyncFile(IoEngine& engine, int fd, std::string path, IoAlignment alignment)
      : engine_(engine),
        fd_(fd),
        path_(std::move(path)),
        alignment_(alignment) {}

  const std::string& path() const { return path_; }
  const IoAlignment& alignment() const { return alignment_; }

  // Start a transfer. DataLoss if the file ends too early; other errors as in
  // IoError. After an error the contents of `out`, or of the range of the file,
  // are undefined. The memory must stay valid and untouched until `done`.
  void Read(int64_t offset, std::span<std::byte> out, Done done);
  void Write(int64_t offset, std::span<const std::byte> bytes, Done done);

 private:
  struct Transfer;

  void Continue(std::shared_ptr<Transfer> transfer);
  void Advance(const std::shared_ptr<Transfer>& transfer, int64_t result);
  absl::Status Failure(const Transfer& transfer, int64_t result) const;

  IoEngine& engine_;
  const int fd_;
  const std::string path_;
  const IoAlignment alignment_;
};

// An open file, which bypasses the page cache (O_DIRECT) if the file system
// allows it.

struct OpenedFile {
  UniqueFd fd;
  std::string path;  // for messages: "DIRECTORY/(scratch)"
  // Reported by the kernel (statx, STATX_DIOALIGN), or 4096 if a trial
  // succeeds. 1 and 1 without O_DIRECT.
  IoAlignment alignment;
  bool direct = false;
  std::string why_not_direct;
};

// Opens a file without a name in `directory`. The system deletes it when its
// descriptor is closed, even after SIGKILL (O_TMPFILE, or unlinked at once).
absl::StatusOr<OpenedFile> OpenScratchFile(const std::string& directory,
                                           bool want_direct);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_ASYNC_FILE_H_
