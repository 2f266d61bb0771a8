// StagingPool: host memory for copies to and from a device, reused when the
// copies are done.
//
//   StagingPool staging(queue);
//   TESSERA_RETURN_IF_ERROR(staging.Upload(std::as_bytes(std::span(tokens)),
//                                          device_tokens));
//   TESSERA_ASSIGN_OR_RETURN(Download loss,
//                            staging.StartDownload(device_loss));
//   ... at the end of the step ...
//   TESSERA_ASSIGN_OR_RETURN(std::span<const std::byte> bytes, loss.Wait());
//
//   TESSERA_ASSIGN_OR_RETURN(StagedUpload upload, staging.Stage(1024));
//   Compute(upload.bytes());                 // No copy by the host.
//   TESSERA_RETURN_IF_ERROR(staging.Send(upload, device_bytes));
//
// The pool never waits for the device: if all blocks are in use, it allocates
// another, so the number of blocks is at most the maximum number of concurrent
// copies. On an immediate queue an upload is a single copy. Use it on one
// thread at a time.
#ifndef TESSERA_BASE_DEVICE_STAGING_H_
#define TESSERA_BASE_DEVICE_STAGING_H_

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/tensor/memory.h"

namespace tessera {

struct StagingBlock {
  Buffer memory;
  Event done;  // Happens after the block's last copy.
};

// A copy of device bytes to the host that may still be running.
class Download {
 public:
  Download() = default;

  // Blocks the host until the bytes have arrived. They stay valid while this
  // object or a copy of it exists.
  absl::StatusOr<std::span<const std::byte>> Wait(
      SourcePlace place = SourcePlace::current()) const;
  const Event& event() const { return done_; }

 private:
  friend class StagingPool;

  std::shared_ptr<StagingBlock> block_;
  size_t size_ = 0;
  Event done_;
  Device* device_ = nullptr;
};

// Host bytes to send to a device. Their memory is reused after all copies of
// this object are destroyed and the sent bytes have arrived.
class StagedUpload {
 public:
  StagedUpload() = default;

  // Uninitialised until the caller writes them.
  std::span<std::byte> bytes() const {
    return block_ == nullptr
               ? std::span<std::byte>()
               : std::span<std::byte>(block_->memory.data(), size_);
  }

 private:
  friend class StagingPool;

  std::shared_ptr<StagingBlock> block_;
  size_t size_ = 0;
};

class StagingPool {
 public:
  // `queue` executes the copies and must outlive the pool.
  explicit StagingPool(Queue& queue) : queue_(queue) {}

  // Copies `source`, which may change after the call, to device memory.
  absl::Status Upload(std::span<const std::byte> source,
                      std::span<std::byte> target,
                      SourcePlace place = SourcePlace::current());
  // The same in two parts, for a caller that writes the bytes itself.
  absl::StatusOr<StagedUpload> Stage(
      size_t bytes, SourcePlace place = SourcePlace::current());
  absl::Status Send(const StagedUpload& upload, std::span<std::byte> target,
                    SourcePlace place = SourcePlace::current());

  absl::StatusOr<Download> StartDownload(
      std::span<const std::byte> source,
      SourcePlace place = SourcePlace::current());

  size_t blocks() const { return blocks_.size(); }

 private:
  // A block of at least `bytes` bytes whose copies are done and that no
  // Download or StagedUpload holds.
  absl::StatusOr<std::shared_ptr<StagingBlock>> Take(size_t bytes);

  Queue& queue_;
  std::vector<std::shared_ptr<StagingBlock>> blocks_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_STAGING_H_
