#include "offload/file/async_file.h"

#include <fcntl.h>
#include <linux/stat.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/status/status.h"
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

namespace {

// The number of consecutive results without progress after which a transfer
// fails.
constexpr int kMostStalls = 1000;

}  // namespace

struct AsyncFile::Transfer {
  IoRequest::Kind kind;
  int64_t offset;
  std::byte* data;
  size_t bytes;
  Done done;
  size_t moved = 0;
  int stalls = 0;
};

void AsyncFile::Read(int64_t offset, std::span<std::byte> out, Done done) {
  Continue(std::make_shared<Transfer>(Transfer{IoRequest::Kind::kRead, offset,
                                               out.data(), out.size(),
                                               std::move(done)}));
}

void AsyncFile::Write(int64_t offset, std::span<const std::byte> bytes,
                      Done done) {
  // A write only reads the bytes.
  auto* data = const_cast<std::byte*>(bytes.data());
  Continue(std::make_shared<Transfer>(Transfer{
      IoRequest::Kind::kWrite, offset, data, bytes.size(), std::move(done)}));
}

void AsyncFile::Continue(std::shared_ptr<Transfer> transfer) {
  IoRequest request;
  request.kind = transfer->kind;
  request.fd = fd_;
  request.offset = transfer->offset + static_cast<int64_t>(transfer->moved);
  request.data = transfer->data + transfer->moved;
  request.bytes = transfer->bytes - transfer->moved;
  request.done = [this, transfer = std::move(transfer)](int64_t result) {
    Advance(transfer, result);
  };
  engine_.Submit(std::move(request));
}

void AsyncFile::Advance(const std::shared_ptr<Transfer>& transfer,
                        int64_t result) {
  const size_t before = transfer->moved;
  if (result > 0) transfer->moved += static_cast<size_t>(result);
  if (transfer->moved >= transfer->bytes) {
    transfer->done(absl::OkStatus());
    return;
  }
  const bool at_end = result == 0 && transfer->kind == IoRequest::Kind::kRead;
  const bool failed = result < 0 && result != -EINTR && result != -EAGAIN;
  if (!at_end && !failed) {
    // The remainder must start at an offset that direct I/O accepts.
    transfer->moved -= transfer->moved % static_cast<size_t>(alignment_.offset);
    transfer->stalls = transfer->moved > before ? 0 : transfer->stalls + 1;
    if (transfer->stalls < kMostStalls) {
      Continue(transfer);
      return;
    }
  }
  transfer->done(Failure(*transfer, result));
}

absl::Status AsyncFile::Failure(const Transfer& transfer,
                                int64_t result) const {
  const bool read = transfer.kind == IoRequest::Kind::kRead;
  const auto moved = static_cast<int64_t>(transfer.moved);
  const auto bytes = static_cast<int64_t>(transfer.bytes);
  if (result < 0 && transfer.stalls < kMostStalls) {
    return IoError(static_cast<int>(-result), read ? "read" : "write",
                   bytes - moved, transfer.offset + moved, path_);
  }
  const std::string where =
      absl::StrCat(read ? "read" : "write", " of ", bytes, " bytes at offset ",
                   transfer.offset, " of file ", path_, ": ");
  if (read && result == 0) {
    return absl::DataLossError(absl::StrCat(where, "the file ends at ",
                                            transfer.offset + moved,
                                            "; it has been truncated"));
  }
  return absl::UnavailableError(
      absl::StrCat(where, "no progress in ", kMostStalls, " attempts after ",
                   moved, " bytes (last result ", result, ")"));
}

namespace {

constexpr int64_t kTrialAlignment = 4096;

// The alignment that the kernel reports; {0, 0} if it has no direct I/O for the
// file, {1, 1} if it reports none.
IoAlignment StatedAlignment([[maybe_unused]] int fd) {
#ifdef STATX_DIOALIGN
  struct statx info = {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0) {
    return {info.stx_dio_mem_align, info.stx_dio_offset_align};
  }
#endif
  return {};
}

// Tries a read of 4096 bytes at offset 4096 into aligned memory, the minimum of
// every transfer here.
bool TrialPasses(int fd) {
  void* buffer = nullptr;
  if (posix_memalign(&buffer, kTrialAlignment, kTrialAlignment) != 0) {
    return false;
  }
  const bool passes = pread(fd, buffer, kTrialAlignment, 0) >= 0;
  free(buffer);
  return passes;
}

bool SetDirect(int fd, bool on) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 &&
         fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

void TryDirect(OpenedFile& file) {
  IoAlignment stated = StatedAlignment(file.fd.get());
  const bool told = stated != IoAlignment{};
  if (!told) stated = {kTrialAlignment, kTrialAlignment};
  if (stated.memory == 0 || stated.offset == 0) {
    file.why_not_direct = "the file system has no direct I/O for this file";
  } else if (stated.memory > kTrialAlignment ||
             stated.offset > kTrialAlignment) {
    file.why_not_direct = absl::StrCat("direct I/O needs an alignment of ",
                                       stated.offset, " bytes");
  } else if (!SetDirect(file.fd.get(), true)) {
    file.why_not_direct = "the file system refuses O_DIRECT";
  } else if (!told && !TrialPasses(file.fd.get())) {
    SetDirect(file.fd.get(), false);
    file.why_not_direct = "a direct read at an alignment of 4096 bytes failed";
  } else {
    file.direct = true;
    file.alignment = stated;
  }
}

UniqueFd MakeUnlinked(const std::string& directory) {
  std::string name = directory + "/tessera-scratch-XXXXXX";
  UniqueFd fd(mkostemp(name.data(), O_CLOEXEC));
  if (fd.valid()) unlink(name.c_str());
  return fd;
}

}  // namespace

absl::StatusOr<OpenedFile> OpenScratchFile(const std::string& directory,
                                           bool want_direct) {
  UniqueFd fd(open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fd.valid() && errno != ENOENT && errno != ENOTDIR && errno != EACCES) {
    fd = MakeUnlinked(directory);
  }
  if (!fd.valid()) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("cannot create a scratch file in \"", directory,
                            "\"; name a writable directory"));
  }
  OpenedFile file;
  file.fd = std::move(fd);
  file.path = directory + "/(scratch)";
  if (want_direct) {
    TryDirect(file);
  } else {
    file.why_not_direct = "the options ask for the page cache";
  }
  return file;
}

}  // namespace tessera::offload
