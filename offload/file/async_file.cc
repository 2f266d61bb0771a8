#include "offload/file/async_file.h"

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "offload/file/io_error.h"

namespace tessera::offload {
namespace {

// Results in a row that moved nothing before it is given up.
constexpr int kMostStalls = 1000;

}  // namespace

struct AsyncFile::Transfer {
  IoRequest::Kind kind;
  int64_t offset;
  std::byte* data;
  size_t bytes;
  bool sync;
  Done done;
  size_t moved = 0;
  int stalls = 0;
};

void AsyncFile::Read(int64_t offset, std::span<std::byte> out, Done done) {
  Continue(std::make_shared<Transfer>(Transfer{IoRequest::Kind::kRead, offset,
                                               out.data(), out.size(), false,
                                               std::move(done)}));
}

void AsyncFile::Write(int64_t offset, std::span<const std::byte> bytes,
                      bool sync, Done done) {
  // A write only reads them.
  auto* data = const_cast<std::byte*>(bytes.data());
  Continue(std::make_shared<Transfer>(Transfer{IoRequest::Kind::kWrite, offset,
                                               data, bytes.size(), sync,
                                               std::move(done)}));
}

void AsyncFile::Continue(std::shared_ptr<Transfer> transfer) {
  IoRequest request;
  request.kind = transfer->kind;
  request.fd = fd_;
  request.offset = transfer->offset + static_cast<int64_t>(transfer->moved);
  request.data = transfer->data + transfer->moved;
  request.bytes = transfer->bytes - transfer->moved;
  request.sync = transfer->sync;
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
    // What is left starts where a direct request may start.
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

absl::Status AsyncFile::ReadNow(int64_t offset, std::span<std::byte> out) {
  absl::Notification over;
  absl::Status status;
  Read(offset, out, [&](absl::Status s) {
    status = std::move(s);
    over.Notify();
  });
  over.WaitForNotification();
  return status;
}

absl::Status AsyncFile::WriteNow(int64_t offset,
                                 std::span<const std::byte> bytes, bool sync) {
  absl::Notification over;
  absl::Status status;
  Write(offset, bytes, sync, [&](absl::Status s) {
    status = std::move(s);
    over.Notify();
  });
  over.WaitForNotification();
  return status;
}

}  // namespace tessera::offload
