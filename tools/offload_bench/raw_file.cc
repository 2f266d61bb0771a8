#include "tools/offload_bench/raw_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>

#include <cerrno>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tools/offload_bench/weights.h"

namespace tessera::offload_bench {
namespace {

constexpr uint64_t kSeed = 4;

absl::StatusOr<std::unique_ptr<RawMover>> MakeMover(
    const RawFileOptions& options) {
  if (options.uring) {
    auto ring = MakeRingMover(options.depth);
    if (ring.ok()) return ring;
  }
  return MakeThreadMover(options.depth);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RawFile>> RawFile::Create(
    const RawFileOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(offload::OpenedFile file,
                           offload::OpenScratchFile(options.directory, true));
  // Not supported by every file system; the writes then allocate.
  if (const int error = posix_fallocate(file.fd.get(), 0, options.bytes);
      error != 0 && error != EOPNOTSUPP && error != EINVAL) {
    return absl::ErrnoToStatus(
        error, absl::StrCat("room for ", options.bytes, " bytes in ",
                            QuotedPath(options.directory)));
  }
  TESSERA_ASSIGN_OR_RETURN(Buffer memory, RandomBytes(options.bytes, kSeed));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<RawMover> mover, MakeMover(options));
  auto raw = absl::WrapUnique(new RawFile(options, std::move(file),
                                          std::move(memory), std::move(mover)));
  TESSERA_RETURN_IF_ERROR(raw->Write());
  return raw;
}

absl::Status RawFile::Move(bool write) {
  return Annotate(mover_->Move({.fd = file_.fd.get(),
                                .write = write,
                                .data = memory_.data(),
                                .bytes = options_.bytes,
                                .piece_bytes = options_.piece_bytes}),
                  file_.path);
}

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
      " are needed; make room, name another --dir or give less --size"));
}

}  // namespace tessera::offload_bench
