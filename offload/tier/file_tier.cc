#include "offload/tier/file_tier.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::offload {

FileTier::~FileTier() {
  // Waits for engine threads that still use members.
  engine_.reset();
}

void FileTier::AwaitIdle(std::string_view key) {
  const auto idle = [this, key]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const auto found = entries_.find(key);
    return found == entries_.end() || !found->second.busy;
  };
  mutex_.Await(absl::Condition(&idle));
}

// Counts the bytes and excludes other writers of the key.
absl::Status FileTier::BeginPut(std::string_view key, int64_t bytes,
                                Purpose purpose) {
  absl::MutexLock lock(&mutex_);
  AwaitIdle(key);
  const auto found = entries_.find(key);
  if (found != entries_.end()) {
    Entry& entry = found->second;
    if (bytes > entry.room.bytes()) {
      TESSERA_RETURN_IF_ERROR(entry.room.Resize(key, bytes));
    }
    entry.busy = true;
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(
      Reservation room, Accounting::Reserve(accounting_, key, bytes, purpose));
  Entry& entry = entries_[std::string(key)];
  entry.room = std::move(room);
  entry.busy = true;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<FileTier::Version>> FileTier::MakeRoom(
    std::string_view key, int64_t bytes, BlockInfo info) {
  auto version = std::make_shared<Version>();
  TESSERA_ASSIGN_OR_RETURN(
      version->extent, space_->Allocate(bytes),
      Annotate(_, absl::StrCat("tier ", name(), ": block ", QuoteKey(key))));
  version->location = {version->extent->offset(), bytes, {}};
  version->info = info;
  return version;
}

void FileTier::EndPut(const std::string& key,
                      std::shared_ptr<const Version> version) {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(key);
  Entry& entry = found->second;
  if (version != nullptr) entry.version.swap(version);
  if (entry.version == nullptr) {
    entries_.erase(found);
    return;
  }
  entry.busy = false;
  // Cannot fail: it only shrinks.
  entry.room.Resize(key, entry.version->location.bytes).IgnoreError();
  entry.room.SetPurpose(entry.version->info.purpose);
}

Operation FileTier::StartPut(std::string_view key,
                             std::span<const std::byte> bytes, BlockInfo info) {
  const auto size = static_cast<int64_t>(bytes.size());
  absl::Status status = CheckBlock(name(), key, info);
  if (status.ok()) status = BeginPut(key, size, info.purpose);
  if (!status.ok()) return Operation(std::move(status));
  auto version = MakeRoom(key, size, info);
  if (!version.ok()) {
    EndPut(std::string(key), nullptr);
    return Operation(version.status());
  }
  auto [operation, completion] = Operation::Pending();
  transfer_->Write(
      (*version)->location.offset, bytes,
      [this, version = *version, key = std::string(key),
       completion = completion](absl::StatusOr<std::vector<uint32_t>> crcs) {
        if (crcs.ok()) version->location.crcs = *std::move(crcs);
        EndPut(key, crcs.ok() ? version : nullptr);
        completion.Finish(
            Annotate(crcs.status(),
                     absl::StrCat("tier ", name(), ": block ", QuoteKey(key))));
      });
  return std::move(operation);
}

Operation FileTier::StartRead(std::string_view key,
                              std::optional<int64_t> offset,
                              std::span<std::byte> out) {
  const std::shared_ptr<const Version> version = Find(key);
  if (version == nullptr) return Operation(NoSuchBlock(name(), key));
  absl::Status range =
      CheckRange(name(), key, version->location.bytes, offset, out.size());
  if (!range.ok()) return Operation(std::move(range));
  auto [operation, completion] = Operation::Pending();
  // `version` keeps its extent allocated.
  transfer_->Read(
      version->location, offset.value_or(0), out,
      [this, version, key = std::string(key),
       completion = completion](const absl::Status& status) {
        completion.Finish(Annotate(
            status, absl::StrCat("tier ", name(), ": block ", QuoteKey(key))));
      });
  return std::move(operation);
}

std::shared_ptr<const FileTier::Version> FileTier::Find(
    std::string_view key) const {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : found->second.version;
}

absl::Status FileTier::Drop(std::string_view key) {
  absl::MutexLock lock(&mutex_);
  AwaitIdle(key);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return NoSuchBlock(name(), key);
  entries_.erase(found);
  return absl::OkStatus();
}

absl::StatusOr<BlockStat> FileTier::Stat(std::string_view key) const {
  const std::shared_ptr<const Version> version = Find(key);
  if (version == nullptr) return NoSuchBlock(name(), key);
  return BlockStat{version->location.bytes, version->location.bytes,
                   version->info};
}

std::vector<std::string> FileTier::Keys() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> keys;
  for (const auto& [key, entry] : entries_) {
    if (entry.version != nullptr) keys.push_back(key);
  }
  return keys;
}

std::vector<TierUsage> FileTier::usage() const {
  return {{std::string(name()), accounting_->usage()}};
}

namespace {

absl::Status CheckOptions(const FileTierOptions& options) {
  const int64_t piece = options.piece_bytes;
  if (options.path.empty()) {
    return absl::InvalidArgumentError(
        "a file tier needs a path: the directory of its file");
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
  TESSERA_ASSIGN_OR_RETURN(opened_,
                           OpenScratchFile(options_.path, options_.direct));
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
  return absl::OkStatus();
}

}  // namespace tessera::offload
