// BlockTransfer: transfers whole blocks between memory and a file, in
// concurrent pieces with checksums.
//
//   BlockTransfer transfer(file, pool, /*piece_bytes=*/1 << 20);
//   transfer.Write(offset, bytes,
//                  [](absl::StatusOr<std::vector<uint32_t>> crcs) { ... });
//   transfer.Read({offset, length, crcs}, 0, out, [](absl::Status s) { ... });
//
// A piece is transferred directly from or to the caller's memory if its
// alignment suffices for the file, otherwise through a bounce buffer. Checksums
// are computed while other pieces are in flight.
#ifndef TESSERA_OFFLOAD_FILE_BLOCK_TRANSFER_H_
#define TESSERA_OFFLOAD_FILE_BLOCK_TRANSFER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/tensor/memory.h"
#include "offload/file/async_file.h"
#include "offload/tier/accounting.h"

namespace tessera::offload {

// A fixed number of aligned bounce buffers between callers' memory and the
// device. Safe for concurrent use.
//
//   pool->Acquire([=](std::byte* buffer) { ...; pool->Release(buffer); });
class BouncePool {
 public:
  static constexpr size_t kAlignment = 4096;

  // Allocates `count` buffers (at least 1) of `buffer_bytes` from `resource`,
  // counted by `accounting` (Purpose::kBuffers) while the pool lives.
  static absl::StatusOr<std::unique_ptr<BouncePool>> Create(
      std::shared_ptr<Accounting> accounting,
      std::shared_ptr<MemoryResource> resource, int64_t buffer_bytes,
      int64_t count);

  int64_t buffer_bytes() const { return buffer_bytes_; }

  // Calls `use` with a buffer: at once on this thread if one is free; otherwise
  // on the thread that releases one, in the order of the calls.
  void Acquire(std::function<void(std::byte*)> use);
  void Release(std::byte* buffer);

 private:
  BouncePool(Reservation room, Buffer memory, int64_t buffer_bytes);

  const Reservation room_;
  Buffer memory_;
  const int64_t buffer_bytes_;
  absl::Mutex mutex_;
  std::vector<std::byte*> free_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void(std::byte*)>> waiting_ ABSL_GUARDED_BY(mutex_);
};

// The location of a block in the file.
struct BlockLocation {
  int64_t offset = 0;
  int64_t bytes = 0;
  std::vector<uint32_t> crcs;  // the CRC-32C of each piece
};

// Safe for concurrent use; `file` and `pool` must outlive every transfer.
class BlockTransfer {
 public:
  // `piece_bytes` is a power of two, at least 4096 and at most
  // pool.buffer_bytes().
  BlockTransfer(AsyncFile& file, BouncePool& pool, int64_t piece_bytes)
      : file_(file), pool_(pool), piece_bytes_(piece_bytes) {}

  // Writes `bytes`, padded to a multiple of 4096, at `offset`, a multiple of
  // 4096. `bytes` must stay valid until `done`, which receives the CRC-32C of
  // each piece.
  void Write(int64_t offset, std::span<const std::byte> bytes,
             std::function<void(absl::StatusOr<std::vector<uint32_t>>)> done);

  // Reads out.size() bytes from offset `from` of the block and checks every
  // piece that they overlap. DataLoss, naming the file and the range, if a
  // checksum differs.
  void Read(BlockLocation block, int64_t from, std::span<std::byte> out,
            std::function<void(absl::Status)> done);

 private:
  struct Pieces;

  // `bytes` padded to the unit of the file's transfers.
  size_t OnDevice(size_t bytes) const;
  // True if no bounce buffer is needed.
  bool GoesStraight(std::span<const std::byte> part) const;
  void WritePiece(int64_t offset, std::span<const std::byte> part,
                  const std::shared_ptr<Pieces>& pieces, size_t piece);
  // Reads `bytes` at `offset` of the file, and copies those after the first
  // `skip` to `out`.
  void ReadPiece(int64_t offset, int64_t bytes, int64_t skip,
                 std::span<std::byte> out,
                 const std::shared_ptr<Pieces>& pieces, size_t piece);
  // Compares the checksums of consecutive pieces, from piece `first` of the
  // block, with those that were written.
  absl::Status Check(const BlockLocation& block, int64_t first,
                     std::span<const uint32_t> crcs) const;

  AsyncFile& file_;
  BouncePool& pool_;
  const int64_t piece_bytes_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_BLOCK_TRANSFER_H_
