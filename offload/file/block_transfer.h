// BlockTransfer: whole blocks between memory and a file, in pieces that are on
// their way at once, with checksums.
//
//   BlockTransfer transfer(file, pool, /*piece_bytes=*/1 << 20);
//   transfer.Write(offset, bytes, /*sync=*/false,
//                  [](absl::StatusOr<BlockChecksums> sums) { ... });
//   transfer.Read({offset, length, sums}, 0, out, [](absl::Status s) { ... });
//
// A piece goes straight from or to the caller's memory where the alignment of
// the file allows it, else through a bounce buffer. Checksums are taken while
// other pieces are under way.
#ifndef TESSERA_OFFLOAD_FILE_BLOCK_TRANSFER_H_
#define TESSERA_OFFLOAD_FILE_BLOCK_TRANSFER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "offload/file/async_file.h"
#include "offload/file/bounce_pool.h"

namespace tessera::offload {

// CRC-32C of every `unit_bytes` of a block; the last may cover fewer.
struct BlockChecksums {
  // At most so many a block: larger blocks have larger units.
  static constexpr int64_t kMost = 512;

  int64_t unit_bytes = 0;  // a power of two
  std::vector<uint32_t> crcs;
  friend bool operator==(const BlockChecksums&,
                         const BlockChecksums&) = default;
};

// Where a block lies.
struct BlockLocation {
  int64_t offset = 0;
  int64_t bytes = 0;
  BlockChecksums checksums;
};

// Safe for concurrent use; `file` and `pool` outlive every transfer.
class BlockTransfer {
 public:
  // `piece_bytes` is a power of two of at least 4096, at most the pool's.
  BlockTransfer(AsyncFile& file, BouncePool& pool, int64_t piece_bytes)
      : file_(file), pool_(pool), piece_bytes_(piece_bytes) {}

  // Writes at `offset`, a multiple of 4096, up to the next such multiple behind
  // the bytes. `bytes` stay until `done`.
  void Write(int64_t offset, std::span<const std::byte> bytes, bool sync,
             std::function<void(absl::StatusOr<BlockChecksums>)> done);

  // Reads out.size() bytes from `from` of the block on, and checks every unit
  // that they touch: DataLoss names the file and the range of it.
  void Read(BlockLocation block, int64_t from, std::span<std::byte> out,
            std::function<void(absl::Status)> done);

 private:
  struct Writing;
  struct Reading;

  int64_t OnDevice(int64_t bytes) const;
  bool GoesStraight(const std::byte* data, int64_t bytes) const;
  void WritePiece(const std::shared_ptr<Writing>& writing, size_t piece);
  void ReadPiece(const std::shared_ptr<Reading>& reading, size_t piece);
  absl::Status Check(const Reading& reading) const;

  AsyncFile& file_;
  BouncePool& pool_;
  const int64_t piece_bytes_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_BLOCK_TRANSFER_H_
