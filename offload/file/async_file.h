// AsyncFile: ranges of one file, read and written completely or with an error
// that says where.
//
//   AsyncFile file(engine, fd, path, alignment);
//   file.Write(0, bytes, /*sync=*/false, [](absl::Status status) { ... });
//
// Short reads and writes go on where they stopped, EINTR and EAGAIN are tried
// again. Under O_DIRECT the caller keeps to the alignment; see open_file.h.
#ifndef TESSERA_OFFLOAD_FILE_ASYNC_FILE_H_
#define TESSERA_OFFLOAD_FILE_ASYNC_FILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "offload/file/io_engine.h"

namespace tessera::offload {

// What memory addresses, and what offsets and lengths, must be multiples of.
struct IoAlignment {
  int64_t memory = 1;
  int64_t offset = 1;
  friend bool operator==(const IoAlignment&, const IoAlignment&) = default;
};

// Safe for concurrent use. `engine` and the descriptor outlive every request.
class AsyncFile {
 public:
  // On a thread of the engine; quick, never waiting for other requests.
  using Done = std::function<void(absl::Status)>;

  AsyncFile(IoEngine& engine, int fd, std::string path, IoAlignment alignment)
      : engine_(engine),
        fd_(fd),
        path_(std::move(path)),
        alignment_(alignment) {}

  const std::string& path() const { return path_; }
  const IoAlignment& alignment() const { return alignment_; }
  IoEngine& engine() const { return engine_; }

  // DataLoss where the file ends before; else as IoError. After an error the
  // contents of `out`, or of the range of the file, are undefined. The bytes
  // stay, untouched, until `done`.
  void Read(int64_t offset, std::span<std::byte> out, Done done);
  void Write(int64_t offset, std::span<const std::byte> bytes, bool sync,
             Done done);

  // The same, for callers that have nothing else to do.
  absl::Status ReadNow(int64_t offset, std::span<std::byte> out);
  absl::Status WriteNow(int64_t offset, std::span<const std::byte> bytes,
                        bool sync);

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

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_ASYNC_FILE_H_
