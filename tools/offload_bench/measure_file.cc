#include <fcntl.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "base/byte_size.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "offload/file/async_file.h"
#include "offload/file/io_engine.h"
#include "offload/tier/file_tier.h"
#include "tools/offload_bench/measure.h"

namespace tessera::offload_bench {
namespace {

using offload::Accounting;
using offload::FileTier;
using offload::FileTierOptions;
using offload::IoEngineKind;
using offload::kUnlimited;

constexpr uint64_t kSeed = 5;
constexpr uint64_t kRawSeed = 4;
constexpr int64_t kGrowth = int64_t{16} << 20;

absl::Status CheckFreeSpace(const std::string& directory, int64_t bytes) {
  struct statvfs info = {};
  if (statvfs(directory.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, QuotedPath(directory));
  }
  const double free =
      static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
  if (free >= static_cast<double>(bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      QuotedPath(directory), " has ",
      ByteSize(static_cast<int64_t>(free) / 4096 * 4096).ToString(),
      " free and ", ByteSize(bytes).ToString(),
      " are needed; free space, give another --dir or a smaller --size"));
}

// `count` random bytes, which no device compresses. Aligned for O_DIRECT.
absl::StatusOr<Buffer> RandomBytes(int64_t count, uint64_t seed) {
  TESSERA_ASSIGN_OR_RETURN(
      Buffer bytes,
      Buffer::Allocate(HostMemory(), static_cast<size_t>(count), 4096));
  std::mt19937_64 random(seed);
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t value = random();
    std::memcpy(bytes.data() + at, &value,
                std::min(sizeof(value), bytes.size() - at));
  }
  return bytes;
}

// Equal blocks of random bytes, with the keys "0", "1", ..., and the memory
// into which they are read back.
class Blocks {
 public:
  static absl::StatusOr<Blocks> Create(int64_t bytes, int64_t block_bytes) {
    Blocks blocks;
    blocks.block_ = static_cast<size_t>(block_bytes);
    TESSERA_ASSIGN_OR_RETURN(
        blocks.values_, RandomBytes(bytes / block_bytes * block_bytes, kSeed));
    TESSERA_ASSIGN_OR_RETURN(
        blocks.room_,
        Buffer::Allocate(HostMemory(), blocks.values_.size(), 4096));
    std::memset(blocks.room_.data(), 0, blocks.room_.size());
    return blocks;
  }

  int64_t block_bytes() const { return static_cast<int64_t>(block_); }
  int64_t bytes() const { return static_cast<int64_t>(values_.size()); }

  // Starts the transfers of all blocks in order, then waits for them.
  absl::Status Move(bool put, FileTier& tier) {
    std::vector<offload::Operation> operations;
    for (size_t at = 0; at < values_.size(); at += block_) {
      const std::string key = absl::StrCat(at / block_);
      operations.push_back(
          put ? tier.StartPut(
                    key, std::as_const(values_).bytes().subspan(at, block_),
                    {.dtype = DType::kU8})
              : tier.StartGet(key, room_.bytes().subspan(at, block_)));
    }
    absl::Status first;
    for (const auto& operation : operations) first.Update(operation.Wait());
    return first;
  }

  absl::Status Check() const {
    if (std::ranges::equal(values_.bytes(), room_.bytes())) {
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat(
        "the file tier returned other bytes than were put, in blocks of ",
        block_));
  }

 private:
  Buffer values_, room_;
  size_t block_ = 0;
};

// One file that is read and written in order: the throughput of the device.
class RawFile {
 public:
  // Writes the file, so that later passes measure only the device.
  static absl::StatusOr<std::unique_ptr<RawFile>> Create(
      const OffloadBenchOptions& options, int64_t bytes, int64_t piece_bytes,
      IoEngineKind kind) {
    TESSERA_ASSIGN_OR_RETURN(
        offload::OpenedFile opened,
        offload::OpenScratchFile(options.directory, /*want_direct=*/true));
    // Not supported by every file system; the writes then allocate.
    if (const int error = posix_fallocate(opened.fd.get(), 0, bytes);
        error != 0 && error != EOPNOTSUPP && error != EINVAL) {
      return absl::ErrnoToStatus(
          error, absl::StrCat("space for ", bytes, " bytes in ", opened.path));
    }
    TESSERA_ASSIGN_OR_RETURN(
        auto engine,
        offload::CreateIoEngine(kind, static_cast<int>(options.depth)));
    TESSERA_ASSIGN_OR_RETURN(Buffer memory, RandomBytes(bytes, kRawSeed));
    auto raw = absl::WrapUnique(
        new RawFile(std::move(opened), std::move(memory), std::move(engine),
                    static_cast<size_t>(piece_bytes)));
    TESSERA_RETURN_IF_ERROR(raw->Move(/*write=*/true));
    return raw;
  }

  bool direct() const { return opened_.direct; }

  // All bytes once, with as many requests in flight as the engine has room for.
  absl::Status Move(bool write) {
    const size_t size = memory_.size();
    absl::BlockingCounter left(
        static_cast<int>((size + piece_bytes_ - 1) / piece_bytes_));
    absl::Mutex mutex;
    absl::Status first;
    const auto done = [&](const absl::Status& status) {
      {
        absl::MutexLock lock(&mutex);
        first.Update(status);
      }
      left.DecrementCount();
    };
    for (size_t at = 0; at < size; at += piece_bytes_) {
      const auto piece =
          memory_.bytes().subspan(at, std::min(piece_bytes_, size - at));
      const auto offset = static_cast<int64_t>(at);
      if (write) {
        file_.Write(offset, piece, done);
      } else {
        file_.Read(offset, piece, done);
      }
    }
    left.Wait();
    return first;
  }

 private:
  RawFile(offload::OpenedFile opened, Buffer memory,
          std::unique_ptr<offload::IoEngine> engine, size_t piece_bytes)
      : opened_(std::move(opened)),
        memory_(std::move(memory)),
        engine_(std::move(engine)),
        file_(*engine_, opened_.fd.get(), opened_.path, opened_.alignment),
        piece_bytes_(piece_bytes) {}

  const offload::OpenedFile opened_;
  Buffer memory_;
  const std::unique_ptr<offload::IoEngine> engine_;
  offload::AsyncFile file_;
  const size_t piece_bytes_;
};

absl::StatusOr<std::unique_ptr<FileTier>> OpenTier(
    const OffloadBenchOptions& options) {
  FileTierOptions tier;
  tier.path = options.directory;
  tier.queue_depth = static_cast<int>(options.depth);
  tier.space.growth_bytes = kGrowth;
  return FileTier::Create(std::make_shared<Accounting>("file", kUnlimited),
                          std::move(tier));
}

std::string NoteOf(const FileTier& tier, const RawFile& raw) {
  if (tier.direct() != raw.direct()) {
    return "NOT COMPARABLE: one of the two goes through the page cache";
  }
  if (tier.direct()) return "O_DIRECT";
  return absl::StrCat("PAGE CACHE, not the device: ", tier.why_not_direct());
}

absl::Status MeasureDirection(bool put, FileTier& tier, Blocks& blocks,
                              RawFile& raw, double seconds, const Sink& sink) {
  return Report({.what = "file",
                 .name = absl::StrCat(tier.name(), " by ", tier.engine_name()),
                 .operation = put ? "put" : "get",
                 .block_bytes = blocks.block_bytes(),
                 .bytes = blocks.bytes(),
                 .limit = "device",
                 .note = NoteOf(tier, raw)},
                Timed([&] { return blocks.Move(put, tier); }),
                Timed([&] { return raw.Move(put); }), seconds, sink);
}

absl::Status MeasureBlocks(const OffloadBenchOptions& options,
                           int64_t block_bytes, const Sink& sink) {
  TESSERA_ASSIGN_OR_RETURN(const auto tier, OpenTier(options));
  TESSERA_ASSIGN_OR_RETURN(Blocks blocks,
                           Blocks::Create(options.size, block_bytes));
  // Twice: extents that were never written behave otherwise, and a Put writes
  // to another place than the one before.
  for (const bool put : {true, true, false}) {
    TESSERA_RETURN_IF_ERROR(blocks.Move(put, *tier));
  }
  TESSERA_RETURN_IF_ERROR(blocks.Check());
  TESSERA_ASSIGN_OR_RETURN(
      const auto raw,
      RawFile::Create(options, blocks.bytes(),
                      std::min(block_bytes, FileTierOptions().piece_bytes),
                      tier->engine_name() == "io_uring"
                          ? IoEngineKind::kIoUring
                          : IoEngineKind::kThreads));
  for (const bool put : {true, false}) {
    TESSERA_RETURN_IF_ERROR(
        MeasureDirection(put, *tier, blocks, *raw, options.seconds, sink));
  }
  // The last passes too.
  return blocks.Check();
}

}  // namespace

absl::Status MeasureFileTier(const OffloadBenchOptions& options,
                             const Sink& sink) {
  // Two versions of each block, and the raw file.
  TESSERA_RETURN_IF_ERROR(
      CheckFreeSpace(options.directory, 3 * options.size + 2 * kGrowth));
  for (const int64_t block_bytes : options.blocks) {
    TESSERA_RETURN_IF_ERROR(MeasureBlocks(options, block_bytes, sink));
  }
  return absl::OkStatus();
}

}  // namespace tessera::offload_bench
