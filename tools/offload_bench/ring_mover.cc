#include <liburing.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "tools/offload_bench/raw_file.h"

namespace tessera::offload_bench {
namespace {

constexpr int kMostStalls = 1000;

class RingMover final : public RawMover {
 public:
  static absl::StatusOr<std::unique_ptr<RawMover>> Create(int depth) {
    auto mover = absl::WrapUnique(new RingMover(depth));
    const int error =
        io_uring_queue_init(static_cast<unsigned>(depth), &mover->ring_, 0);
    if (error < 0) {
      return absl::UnavailableError(absl::StrCat(
          "the kernel refuses io_uring of depth ", depth, ": ",
          absl::ErrnoToStatus(-error, "io_uring_setup").message()));
    }
    mover->open_ = true;
    return mover;
  }
  ~RingMover() override {
    if (open_) io_uring_queue_exit(&ring_);
  }

  std::string_view name() const override { return "io_uring"; }

  absl::Status Move(const RawTransfer& transfer) override {
    if (broken_) return absl::UnavailableError("the ring has failed before");
    int64_t next = 0;
    in_flight_ = 0;
    absl::Status first;
    while ((first.ok() && next < transfer.bytes) || in_flight_ > 0) {
      while (first.ok() && next < transfer.bytes && in_flight_ < depth_) {
        Prepare(transfer, next);
        next += transfer.piece_bytes;
        ++in_flight_;
      }
      first.Update(Enter());
      in_flight_ -= Reap(transfer, first);
    }
    return first;
  }

 private:
  explicit RingMover(int depth) : depth_(depth) {}

  static int64_t PieceAt(const RawTransfer& transfer, int64_t at) {
    return std::min(transfer.piece_bytes, transfer.bytes - at);
  }

  // Submits the prepared requests and waits for a completion. After an error
  // nothing more is submitted, and in_flight_ excludes requests that were not
  // submitted.
  absl::Status Enter() {
    if (broken_) {
      io_uring_cqe* completion = nullptr;
      io_uring_wait_cqe(&ring_, &completion);
      return absl::OkStatus();
    }
    const int entered = io_uring_submit_and_wait(&ring_, 1);
    if (entered >= 0 || entered == -EINTR) {
      stalls_ = 0;
      return absl::OkStatus();
    }
    // Temporarily short of memory or completion entries: waits for a completion
    // or a millisecond.
    if ((entered == -EAGAIN || entered == -EBUSY) && ++stalls_ < kMostStalls) {
      pollfd ring = {.fd = ring_.ring_fd, .events = POLLIN, .revents = 0};
      poll(&ring, 1, /*timeout=*/1);
      return absl::OkStatus();
    }
    broken_ = true;
    in_flight_ -= static_cast<int64_t>(io_uring_sq_ready(&ring_));
    return absl::ErrnoToStatus(-entered, "io_uring_enter");
  }

  void Prepare(const RawTransfer& transfer, int64_t at) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    const auto bytes = static_cast<unsigned>(PieceAt(transfer, at));
    const auto offset = static_cast<uint64_t>(at);
    if (transfer.write) {
      io_uring_prep_write(entry, transfer.fd, transfer.data + at, bytes,
                          offset);
    } else {
      io_uring_prep_read(entry, transfer.fd, transfer.data + at, bytes, offset);
    }
    entry->user_data = offset;
  }

  // Everything that is over now; how many that were.
  int64_t Reap(const RawTransfer& transfer, absl::Status& first) {
    int64_t reaped = 0;
    io_uring_cqe* completion = nullptr;
    while (io_uring_peek_cqe(&ring_, &completion) == 0) {
      const auto at = static_cast<int64_t>(completion->user_data);
      first.Update(
          CheckRawResult(transfer, at, PieceAt(transfer, at), completion->res));
      io_uring_cqe_seen(&ring_, completion);
      ++reaped;
    }
    return reaped;
  }

  const int64_t depth_;
  io_uring ring_ = {};
  bool open_ = false;
  bool broken_ = false;
  int64_t in_flight_ = 0;
  int stalls_ = 0;  // Refusals in a row.
};

}  // namespace

absl::StatusOr<std::unique_ptr<RawMover>> MakeRingMover(int depth) {
  return RingMover::Create(depth);
}

}  // namespace tessera::offload_bench
