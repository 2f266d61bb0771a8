// FileTier: opening, and what a crash has left.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "offload/tier/file_tier.h"

namespace tessera::offload {
namespace {

absl::Status CheckOptions(const FileTierOptions& options) {
  const int64_t piece = options.piece_bytes;
  if (options.path.empty()) {
    return absl::InvalidArgumentError(
        "a file tier needs a path: a directory, or with keep the file");
  }
  if (piece < FileSpace::kUnit || piece > (int64_t{1} << 30) ||
      (piece & (piece - 1)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "pieces of ", piece, " bytes; a power of two from 4096 to 2^30"));
  }
  if (options.bounce_bytes < piece || options.bounce_bytes % piece != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.bounce_bytes,
                     " bytes of bounce buffers; a "
                     "multiple of the piece size, ",
                     piece));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileTier>> FileTier::Create(
    std::shared_ptr<Accounting> accounting, FileTierOptions options) {
  TESSERA_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<FileTier> tier(
      new FileTier(std::move(accounting), std::move(options)));
  TESSERA_RETURN_IF_ERROR(tier->Open(),
                          Annotate(_, absl::StrCat("tier ", tier->name())));
  return tier;
}

absl::Status FileTier::Open() {
  TESSERA_ASSIGN_OR_RETURN(
      opened_, options_.keep ? OpenKeptFile(options_.path, options_.direct,
                                            options_.lock_wait)
                             : OpenScratchFile(options_.path, options_.direct));
  TESSERA_ASSIGN_OR_RETURN(
      engine_, CreateIoEngine(options_.engine, options_.queue_depth));
  if (options_.wrap != nullptr) engine_ = options_.wrap(std::move(engine_));
  TESSERA_ASSIGN_OR_RETURN(
      pool_, BouncePool::Create(
                 options_.bounce_accounting != nullptr
                     ? options_.bounce_accounting
                     : std::make_shared<Accounting>("bounce", kUnlimited),
                 options_.bounce_memory, options_.piece_bytes,
                 options_.bounce_bytes / options_.piece_bytes));
  file_ = std::make_unique<AsyncFile>(*engine_, opened_.fd.get(), opened_.path,
                                      opened_.alignment);
  transfer_ =
      std::make_unique<BlockTransfer>(*file_, *pool_, options_.piece_bytes);
  TESSERA_ASSIGN_OR_RETURN(
      space_,
      FileSpace::Create(opened_.fd.get(), opened_.path, options_.space));
  if (!options_.keep) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(table_,
                           BlockTable::Open(*file_, space_, options_.sync));
  return Recover();
}

// Later versions claim their space first: what was written over loses.
absl::Status FileTier::Recover() {
  std::vector<std::vector<BlockRecord>> found = table_->found();
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return a.front().generation > b.front().generation;
  });
  for (const std::vector<BlockRecord>& records : found) {
    TESSERA_RETURN_IF_ERROR(RecoverBlock(records));
  }
  std::sort(recovery_.lost.begin(), recovery_.lost.end());
  return absl::OkStatus();
}

absl::Status FileTier::RecoverBlock(const std::vector<BlockRecord>& records) {
  absl::MutexLock lock(&mutex_);
  for (const BlockRecord& record : records) {
    if (entries_.contains(record.key)) continue;
    absl::StatusOr<std::shared_ptr<const Version>> version = Restore(record);
    if (absl::IsDataLoss(version.status()) ||
        absl::IsInvalidArgument(version.status())) {
      continue;  // Damaged, or its space is in use.
    }
    TESSERA_RETURN_IF_ERROR(version.status());
    const BlockStat stat = {record.bytes, record.bytes, (*version)->info};
    TESSERA_ASSIGN_OR_RETURN(
        Reservation room, Accounting::Reserve(accounting_, record.key,
                                              stat.bytes, stat.info.purpose));
    Entry& entry = entries_[record.key];
    entry.version = *std::move(version);
    entry.slot = record.slot;
    entry.room = std::move(room);
    table_->Keep(record.slot, record.generation);
    ++recovery_.blocks;
    if (&record != &records.front()) ++recovery_.older;
    return absl::OkStatus();
  }
  recovery_.lost.push_back(records.front().key);
  table_->ReturnSlot(records.front().slot);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const FileTier::Version>> FileTier::Restore(
    const BlockRecord& record) {
  auto version = std::make_shared<Version>();
  version->info = {static_cast<Purpose>(record.purpose),
                   static_cast<DType>(record.dtype), record.original_bytes};
  TESSERA_RETURN_IF_ERROR(CheckBlock(name(), record.key, version->info));
  // A block without bytes has no space, wherever its record says it is.
  TESSERA_ASSIGN_OR_RETURN(
      version->extent,
      space_->Claim(record.bytes == 0 ? 0 : record.offset, record.bytes));
  version->location = {record.offset, record.bytes, record.checksums};
  if (options_.verify) TESSERA_RETURN_IF_ERROR(Verify(version->location));
  return version;
}

absl::Status FileTier::Verify(const BlockLocation& location) {
  if (location.bytes == 0) return absl::OkStatus();
  const int64_t unit = location.checksums.unit_bytes;
  const int64_t window = std::min(
      location.bytes, std::max(unit, options_.bounce_bytes / unit * unit));
  TESSERA_ASSIGN_OR_RETURN(
      Buffer buffer, Buffer::Allocate(HostMemory(), static_cast<size_t>(window),
                                      static_cast<size_t>(FileSpace::kUnit)));
  for (int64_t at = 0; at < location.bytes; at += window) {
    const auto bytes =
        static_cast<size_t>(std::min(window, location.bytes - at));
    auto [operation, completion] = Operation::Pending();
    transfer_->Read(location, at, buffer.bytes().first(bytes),
                    [c = completion](const absl::Status& s) { c.Finish(s); });
    TESSERA_RETURN_IF_ERROR(operation.Wait());
  }
  return absl::OkStatus();
}

}  // namespace tessera::offload
