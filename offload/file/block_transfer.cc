#include "offload/file/block_transfer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "offload/file/crc32c.h"

namespace tessera::offload {

absl::StatusOr<std::unique_ptr<BouncePool>> BouncePool::Create(
    std::shared_ptr<Accounting> accounting,
    std::shared_ptr<MemoryResource> resource, int64_t buffer_bytes,
    int64_t count) {
  constexpr auto kUnit = static_cast<int64_t>(kAlignment);
  if (count < 1 || buffer_bytes < kUnit || buffer_bytes % kUnit != 0 ||
      count > INT64_MAX / 2 / buffer_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(count, " bounce buffers of ", buffer_bytes,
                     " bytes; at least one, of a multiple of ", kAlignment));
  }
  TESSERA_ASSIGN_OR_RETURN(
      Reservation room,
      Accounting::Reserve(std::move(accounting), "bounce buffers",
                          count * buffer_bytes, Purpose::kBuffers));
  TESSERA_ASSIGN_OR_RETURN(
      Buffer memory,
      Buffer::Allocate(std::move(resource),
                       static_cast<size_t>(count * buffer_bytes), kAlignment));
  return std::unique_ptr<BouncePool>(
      new BouncePool(std::move(room), std::move(memory), buffer_bytes));
}

BouncePool::BouncePool(Reservation room, Buffer memory, int64_t buffer_bytes)
    : room_(std::move(room)),
      memory_(std::move(memory)),
      buffer_bytes_(buffer_bytes) {
  const auto step = static_cast<size_t>(buffer_bytes);
  for (size_t at = 0; at < memory_.size(); at += step) {
    free_.push_back(memory_.data() + at);
  }
}

void BouncePool::Acquire(std::function<void(std::byte*)> use) {
  std::byte* buffer = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (free_.empty()) {
      waiting_.push_back(std::move(use));
      return;
    }
    buffer = free_.back();
    free_.pop_back();
  }
  use(buffer);
}

void BouncePool::Release(std::byte* buffer) {
  std::function<void(std::byte*)> next;
  {
    absl::MutexLock lock(&mutex_);
    if (waiting_.empty()) {
      free_.push_back(buffer);
      return;
    }
    next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  next(buffer);
}

namespace {

int64_t Pieces(int64_t bytes, int64_t piece) {
  return (bytes + piece - 1) / piece;
}

// Collects the first error of parts, which may end on any thread.
class Countdown {
 public:
  explicit Countdown(size_t parts) : left_(parts) {}

  // Returns true if this was the last part.
  bool Finish(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    status_.Update(status);
    return --left_ == 0;
  }
  absl::Status status() const {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  mutable absl::Mutex mutex_;
  size_t left_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// Combines the checksums of consecutive pieces, of which the last has
// `last_bytes`.
uint32_t Fold(std::span<const uint32_t> pieces, int64_t piece_bytes,
              int64_t last_bytes) {
  uint32_t crc = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const bool last = i + 1 == pieces.size();
    crc = CombineCrc32c(crc, pieces[i],
                        static_cast<uint64_t>(last ? last_bytes : piece_bytes));
  }
  return crc;
}

BlockChecksums FoldAll(std::span<const uint32_t> pieces, int64_t piece_bytes,
                       int64_t bytes) {
  BlockChecksums sums;
  sums.unit_bytes = piece_bytes;
  while (Pieces(bytes, sums.unit_bytes) > BlockChecksums::kMost) {
    sums.unit_bytes *= 2;
  }
  const auto per_unit = static_cast<size_t>(sums.unit_bytes / piece_bytes);
  for (size_t at = 0; at < pieces.size(); at += per_unit) {
    const size_t count = std::min(per_unit, pieces.size() - at);
    const int64_t last =
        std::min(piece_bytes,
                 bytes - static_cast<int64_t>(at + count - 1) * piece_bytes);
    sums.crcs.push_back(Fold(pieces.subspan(at, count), piece_bytes, last));
  }
  return sums;
}

}  // namespace

struct BlockTransfer::Writing {
  Writing(size_t parts, int64_t file_offset, std::span<const std::byte> data,
          bool durable,
          std::function<void(absl::StatusOr<BlockChecksums>)> callback)
      : countdown(parts + 1),
        crcs(parts),
        offset(file_offset),
        bytes(data),
        sync(durable),
        done(std::move(callback)) {}

  void Finish(const absl::Status& status, int64_t piece_bytes) {
    if (!countdown.Finish(status)) return;
    const absl::Status all = countdown.status();
    if (!all.ok()) {
      done(all);
    } else {
      done(FoldAll(crcs, piece_bytes, static_cast<int64_t>(bytes.size())));
    }
  }

  Countdown countdown;
  std::vector<uint32_t> crcs;  // one a piece
  const int64_t offset;
  const std::span<const std::byte> bytes;
  const bool sync;
  const std::function<void(absl::StatusOr<BlockChecksums>)> done;
};

struct BlockTransfer::Reading {
  Reading(size_t parts, BlockLocation location, int64_t first_byte,
          std::span<std::byte> target, int64_t piece, int64_t first,
          std::function<void(absl::Status)> callback)
      : countdown(parts),
        crcs(parts),
        block(std::move(location)),
        from(first_byte),
        out(target),
        piece_bytes(piece),
        first_piece(first),
        done(std::move(callback)) {}

  Countdown countdown;
  std::vector<uint32_t> crcs;  // one a piece
  const BlockLocation block;
  const int64_t from;
  const std::span<std::byte> out;
  const int64_t piece_bytes;
  const int64_t first_piece;
  const std::function<void(absl::Status)> done;
};

int64_t BlockTransfer::OnDevice(int64_t bytes) const {
  const int64_t unit = file_.alignment().offset;
  return (bytes + unit - 1) / unit * unit;
}

bool BlockTransfer::GoesStraight(const std::byte* data, int64_t bytes) const {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return address % static_cast<uintptr_t>(file_.alignment().memory) == 0 &&
         bytes % file_.alignment().offset == 0;
}

void BlockTransfer::Write(
    int64_t offset, std::span<const std::byte> bytes, bool sync,
    std::function<void(absl::StatusOr<BlockChecksums>)> done) {
  const auto pieces = static_cast<size_t>(
      Pieces(static_cast<int64_t>(bytes.size()), piece_bytes_));
  const auto writing =
      std::make_shared<Writing>(pieces, offset, bytes, sync, std::move(done));
  for (size_t piece = 0; piece < pieces; ++piece) WritePiece(writing, piece);
  // Computes the checksum of the direct part while its request is in flight.
  const auto step = static_cast<size_t>(piece_bytes_);
  for (size_t piece = 0; piece < pieces; ++piece) {
    const auto part = bytes.subspan(
        piece * step, std::min(step, bytes.size() - piece * step));
    if (GoesStraight(part.data(), static_cast<int64_t>(part.size()))) {
      writing->crcs[piece] = Crc32c(part);
    }
  }
  writing->Finish(absl::OkStatus(), piece_bytes_);
}

void BlockTransfer::WritePiece(const std::shared_ptr<Writing>& writing,
                               size_t piece) {
  const auto step = static_cast<size_t>(piece_bytes_);
  const auto part = writing->bytes.subspan(
      piece * step, std::min(step, writing->bytes.size() - piece * step));
  const int64_t at =
      writing->offset + static_cast<int64_t>(piece) * piece_bytes_;
  const auto bytes = static_cast<int64_t>(part.size());
  if (GoesStraight(part.data(), bytes)) {
    file_.Write(at, part, writing->sync, [this, writing](absl::Status status) {
      writing->Finish(status, piece_bytes_);
    });
    return;
  }
  pool_.Acquire([=, this](std::byte* buffer) {
    std::memcpy(buffer, part.data(), part.size());
    const auto padded = static_cast<size_t>(OnDevice(bytes));
    std::memset(buffer + part.size(), 0, padded - part.size());
    writing->crcs[piece] = Crc32c({buffer, part.size()});
    file_.Write(at, {buffer, padded}, writing->sync,
                [=, this](absl::Status status) {
                  pool_.Release(buffer);
                  writing->Finish(status, piece_bytes_);
                });
  });
}

void BlockTransfer::Read(BlockLocation block, int64_t from,
                         std::span<std::byte> out,
                         std::function<void(absl::Status)> done) {
  if (out.empty()) return done(absl::OkStatus());
  const int64_t unit = block.checksums.unit_bytes;
  const int64_t step = std::min(piece_bytes_, unit);
  const int64_t end =
      std::min(block.bytes,
               Pieces(from + static_cast<int64_t>(out.size()), unit) * unit);
  const int64_t first = from / unit * (unit / step);
  const auto pieces = static_cast<size_t>(Pieces(end, step) - first);
  const auto reading = std::make_shared<Reading>(
      pieces, std::move(block), from, out, step, first, std::move(done));
  for (size_t piece = 0; piece < pieces; ++piece) ReadPiece(reading, piece);
}

void BlockTransfer::ReadPiece(const std::shared_ptr<Reading>& reading,
                              size_t piece) {
  const int64_t start = (reading->first_piece + static_cast<int64_t>(piece)) *
                        reading->piece_bytes;
  const int64_t bytes =
      std::min(reading->piece_bytes, reading->block.bytes - start);
  const auto finish = [reading, piece](const absl::Status& status,
                                       const std::byte* data, int64_t size) {
    if (status.ok()) {
      reading->crcs[piece] = Crc32c({data, static_cast<size_t>(size)});
    }
    return reading->countdown.Finish(status);
  };
  // The requested part of the piece.
  const int64_t wanted = std::max(start, reading->from);
  const int64_t wanted_end = std::min(
      start + bytes, reading->from + static_cast<int64_t>(reading->out.size()));
  std::byte* target = reading->out.data() + (wanted - reading->from);
  const int64_t at = reading->block.offset + start;
  if (wanted == start && wanted_end == start + bytes &&
      GoesStraight(target, bytes)) {
    file_.Read(at, {target, static_cast<size_t>(bytes)},
               [=, this](const absl::Status& status) {
                 if (finish(status, target, bytes)) {
                   reading->done(Check(*reading));
                 }
               });
    return;
  }
  pool_.Acquire([=, this](std::byte* buffer) {
    file_.Read(at, {buffer, static_cast<size_t>(OnDevice(bytes))},
               [=, this](const absl::Status& status) {
                 if (status.ok() && wanted < wanted_end) {
                   std::memcpy(target, buffer + (wanted - start),
                               static_cast<size_t>(wanted_end - wanted));
                 }
                 const bool last = finish(status, buffer, bytes);
                 pool_.Release(buffer);
                 if (last) reading->done(Check(*reading));
               });
  });
}

absl::Status BlockTransfer::Check(const Reading& reading) const {
  const absl::Status moved = reading.countdown.status();
  if (!moved.ok()) return moved;
  const BlockChecksums& sums = reading.block.checksums;
  const int64_t step = reading.piece_bytes;
  const auto per_unit = static_cast<size_t>(sums.unit_bytes / step);
  const std::span<const uint32_t> crcs = reading.crcs;
  for (size_t at = 0; at < crcs.size(); at += per_unit) {
    const int64_t start =
        (reading.first_piece + static_cast<int64_t>(at)) * step;
    const size_t count = std::min(per_unit, crcs.size() - at);
    const int64_t bytes =
        std::min(sums.unit_bytes, reading.block.bytes - start);
    const uint32_t crc = Fold(crcs.subspan(at, count), step,
                              bytes - static_cast<int64_t>(count - 1) * step);
    if (crc != sums.crcs[static_cast<size_t>(start / sums.unit_bytes)]) {
      return absl::DataLossError(absl::StrCat(
          "CRC-32C of bytes ", start, " to ", start + bytes, " (offset ",
          reading.block.offset + start, " of file ", file_.path(),
          ") is wrong: the data was damaged after it was written"));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::offload
