#include "offload/file/block_transfer.h"

#include <algorithm>
#include <cstring>
#include <utility>

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

int64_t CountPieces(int64_t bytes, int64_t piece) {
  return (bytes + piece - 1) / piece;
}

}  // namespace

// The pieces of a transfer, which may end on any thread.
struct BlockTransfer::Pieces {
  // `done` is called when Finish has been called `events` times.
  Pieces(size_t count, size_t events) : crcs(count), left(events) {}

  // One piece has ended; the last one calls `done` with the first error.
  void Finish(const absl::Status& status) {
    {
      absl::MutexLock lock(&mutex);
      first_error.Update(status);
      if (--left > 0) return;
    }
    done(first_error);
  }

  std::vector<uint32_t> crcs;  // by piece
  std::function<void(const absl::Status&)> done;
  absl::Mutex mutex;
  size_t left;
  absl::Status first_error;
};

size_t BlockTransfer::OnDevice(size_t bytes) const {
  const auto unit = static_cast<size_t>(file_.alignment().offset);
  return (bytes + unit - 1) / unit * unit;
}

bool BlockTransfer::GoesStraight(std::span<const std::byte> part) const {
  const auto address = reinterpret_cast<uintptr_t>(part.data());
  return address % static_cast<uintptr_t>(file_.alignment().memory) == 0 &&
         OnDevice(part.size()) == part.size();
}

void BlockTransfer::Write(
    int64_t offset, std::span<const std::byte> bytes,
    std::function<void(absl::StatusOr<std::vector<uint32_t>>)> done) {
  const auto size = static_cast<int64_t>(bytes.size());
  const auto count = static_cast<size_t>(CountPieces(size, piece_bytes_));
  // This function counts as one more piece, so that `done` comes after it.
  const auto pieces = std::make_shared<Pieces>(count, count + 1);
  pieces->done = [pieces = pieces.get(),
                  done = std::move(done)](const absl::Status& status) {
    if (!status.ok()) return done(status);
    done(std::move(pieces->crcs));
  };
  const auto part_of = [&](size_t piece) {
    const size_t at = piece * static_cast<size_t>(piece_bytes_);
    return bytes.subspan(
        at, std::min(static_cast<size_t>(piece_bytes_), bytes.size() - at));
  };
  for (size_t piece = 0; piece < count; ++piece) {
    WritePiece(offset + static_cast<int64_t>(piece) * piece_bytes_,
               part_of(piece), pieces, piece);
  }
  // Computes the checksum of the direct part while its request is in flight.
  for (size_t piece = 0; piece < count; ++piece) {
    const std::span<const std::byte> part = part_of(piece);
    if (GoesStraight(part)) pieces->crcs[piece] = Crc32c(part);
  }
  pieces->Finish(absl::OkStatus());
}

void BlockTransfer::WritePiece(int64_t offset, std::span<const std::byte> part,
                               const std::shared_ptr<Pieces>& pieces,
                               size_t piece) {
  if (GoesStraight(part)) {
    file_.Write(offset, part,
                [pieces](const absl::Status& s) { pieces->Finish(s); });
    return;
  }
  pool_.Acquire([=, this](std::byte* buffer) {
    std::memcpy(buffer, part.data(), part.size());
    const size_t padded = OnDevice(part.size());
    std::memset(buffer + part.size(), 0, padded - part.size());
    pieces->crcs[piece] = Crc32c({buffer, part.size()});
    file_.Write(offset, {buffer, padded}, [=, this](const absl::Status& s) {
      pool_.Release(buffer);
      pieces->Finish(s);
    });
  });
}

void BlockTransfer::Read(BlockLocation block, int64_t from,
                         std::span<std::byte> out,
                         std::function<void(absl::Status)> done) {
  if (out.empty()) return done(absl::OkStatus());
  const int64_t out_end = from + static_cast<int64_t>(out.size());
  const int64_t first = from / piece_bytes_;
  const auto count =
      static_cast<size_t>(CountPieces(out_end, piece_bytes_) - first);
  const int64_t offset = block.offset;
  const int64_t block_bytes = block.bytes;
  const auto pieces = std::make_shared<Pieces>(count, count);
  pieces->done = [=, this, pieces = pieces.get(), block = std::move(block),
                  done = std::move(done)](const absl::Status& status) {
    done(status.ok() ? Check(block, first, pieces->crcs) : status);
  };
  for (size_t piece = 0; piece < count; ++piece) {
    const int64_t start = (first + static_cast<int64_t>(piece)) * piece_bytes_;
    const int64_t bytes = std::min(piece_bytes_, block_bytes - start);
    // The requested part of the piece.
    const int64_t wanted = std::max(start, from);
    const int64_t wanted_end = std::min(start + bytes, out_end);
    ReadPiece(offset + start, bytes, wanted - start,
              out.subspan(static_cast<size_t>(wanted - from),
                          static_cast<size_t>(wanted_end - wanted)),
              pieces, piece);
  }
}

void BlockTransfer::ReadPiece(int64_t offset, int64_t bytes, int64_t skip,
                              std::span<std::byte> out,
                              const std::shared_ptr<Pieces>& pieces,
                              size_t piece) {
  const auto size = static_cast<size_t>(bytes);
  if (out.size() == size && GoesStraight(out)) {
    file_.Read(offset, out, [=](const absl::Status& status) {
      if (status.ok()) pieces->crcs[piece] = Crc32c(out);
      pieces->Finish(status);
    });
    return;
  }
  pool_.Acquire([=, this](std::byte* buffer) {
    file_.Read(offset, {buffer, OnDevice(size)},
               [=, this](const absl::Status& status) {
                 if (status.ok()) {
                   std::copy_n(buffer + skip, out.size(), out.data());
                   pieces->crcs[piece] = Crc32c({buffer, size});
                 }
                 pool_.Release(buffer);
                 pieces->Finish(status);
               });
  });
}

absl::Status BlockTransfer::Check(const BlockLocation& block, int64_t first,
                                  std::span<const uint32_t> crcs) const {
  for (size_t i = 0; i < crcs.size(); ++i) {
    const int64_t piece = first + static_cast<int64_t>(i);
    if (crcs[i] == block.crcs[static_cast<size_t>(piece)]) continue;
    const int64_t start = piece * piece_bytes_;
    const int64_t end = std::min(block.bytes, start + piece_bytes_);
    return absl::DataLossError(
        absl::StrCat("CRC-32C of bytes ", start, " to ", end, " (offset ",
                     block.offset + start, " of file ", file_.path(),
                     ") is wrong: the data was damaged after it was written"));
  }
  return absl::OkStatus();
}

}  // namespace tessera::offload
