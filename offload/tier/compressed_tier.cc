#include "offload/tier/compressed_tier.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"

namespace tessera::offload {
namespace {

// Memory that is counted during its lifetime.
struct Scratch {
  Reservation room;
  Buffer memory;
};

absl::StatusOr<Scratch> NewScratch(const std::shared_ptr<Accounting>& scratch,
                                   std::string_view key, int64_t bytes) {
  Scratch result;
  TESSERA_ASSIGN_OR_RETURN(
      result.room, Accounting::Reserve(scratch, key, bytes, Purpose::kBuffers));
  TESSERA_ASSIGN_OR_RETURN(
      result.memory,
      Buffer::Allocate(HostMemory(), static_cast<size_t>(bytes), 4096));
  return result;
}

}  // namespace

CompressedTier::CompressedTier(std::shared_ptr<const Codec> codec,
                               std::shared_ptr<MemoryTier> base,
                               Options options)
    : codec_(std::move(codec)),
      codec_of_(std::move(options.codec_of)),
      base_(std::move(base)),
      scratch_(options.scratch != nullptr
                   ? std::move(options.scratch)
                   : std::make_shared<Accounting>(
                         absl::StrCat(codec_->name(), " scratch"), kUnlimited)),
      name_(absl::StrCat(codec_->name(), " over ", base_->name())),
      workers_(options.threads) {}

// Precondition: `purpose` is valid, which StartPut has checked.
const Codec& CompressedTier::CodecOf(Purpose purpose) const {
  const auto& own = codec_of_[static_cast<size_t>(purpose)];
  return own != nullptr ? *own : *codec_;
}

bool CompressedTier::IsLossless(Purpose purpose, DType dtype) const {
  return IsValid(purpose) && CodecOf(purpose).IsLossless(dtype) &&
         base_->IsLossless(purpose, dtype);
}

Operation CompressedTier::StartPut(std::string_view key,
                                   std::span<const std::byte> bytes,
                                   BlockInfo info) {
  absl::Status bad = CheckBlock(name_, key, info);
  const auto element = static_cast<size_t>(SizeInBytes(info.dtype));
  if (bad.ok() && bytes.size() % element != 0) {
    bad = absl::InvalidArgumentError(
        absl::StrCat("tier ", name_, ": block ", QuoteKey(key), " has ",
                     bytes.size(), " bytes, not a whole number of elements of ",
                     DTypeName(info.dtype), "; pad it, or put it as u8"));
  }
  if (!bad.ok()) return Operation(std::move(bad));
  return workers_.Run([this, key = std::string(key), bytes, info] {
    return Encode(key, bytes, info);
  });
}

absl::Status CompressedTier::Encode(std::string_view key,
                                    std::span<const std::byte> bytes,
                                    BlockInfo info) {
  const auto size = static_cast<int64_t>(bytes.size());
  const std::string context =
      absl::StrCat("tier ", name_, ": block ", QuoteKey(key));
  const Codec& codec = CodecOf(info.purpose);
  TESSERA_ASSIGN_OR_RETURN(
      const int64_t most,
      codec.MaxEncodedBytes(info.dtype, size / SizeInBytes(info.dtype)),
      Annotate(_, context));
  TESSERA_ASSIGN_OR_RETURN(Scratch scratch, NewScratch(scratch_, key, most));
  TESSERA_ASSIGN_OR_RETURN(
      const int64_t encoded,
      codec.Encode(info.dtype, bytes, scratch.memory.bytes()),
      Annotate(_, context));
  info.original_bytes = size;
  return base_->Put(
      key, scratch.memory.bytes().first(static_cast<size_t>(encoded)), info);
}

Operation CompressedTier::StartRead(std::string_view key,
                                    std::optional<int64_t> offset,
                                    std::span<std::byte> out) {
  return workers_.Run([this, key = std::string(key), offset, out] {
    return Decode(key, offset, out);
  });
}

absl::Status CompressedTier::Decode(std::string_view key,
                                    std::optional<int64_t> offset,
                                    std::span<std::byte> out) {
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const BlockStat held, base_->Stat(key));
    absl::Status status = DecodeFrom(key, held, offset, out);
    if (status.ok()) return status;
    // Another Put may have replaced the block.
    const absl::StatusOr<BlockStat> now = base_->Stat(key);
    if (now.ok() && now->bytes == held.bytes && now->info == held.info) {
      return status;
    }
  }
}

absl::Status CompressedTier::DecodeFrom(std::string_view key,
                                        const BlockStat& held,
                                        std::optional<int64_t> offset,
                                        std::span<std::byte> out) {
  const int64_t bytes = held.info.original_bytes;
  if (bytes < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("tier ", name_, ": block ", QuoteKey(key),
                     " was put into the tier below directly; read it there"));
  }
  TESSERA_RETURN_IF_ERROR(CheckRange(name_, key, bytes, offset, out.size()));
  TESSERA_ASSIGN_OR_RETURN(Scratch encoded,
                           NewScratch(scratch_, key, held.bytes));
  TESSERA_RETURN_IF_ERROR(base_->Get(key, encoded.memory.bytes()));
  const Codec& codec = CodecOf(held.info.purpose);
  const std::string context =
      absl::StrCat("tier ", name_, ": block ", QuoteKey(key));
  if (out.size() == static_cast<size_t>(bytes)) {
    return Annotate(codec.Decode(held.info.dtype, encoded.memory.bytes(), out),
                    context);
  }
  TESSERA_ASSIGN_OR_RETURN(Scratch whole, NewScratch(scratch_, key, bytes));
  TESSERA_RETURN_IF_ERROR(codec.Decode(held.info.dtype, encoded.memory.bytes(),
                                       whole.memory.bytes()),
                          Annotate(_, context));
  std::copy_n(whole.memory.data() + *offset, out.size(), out.data());
  return absl::OkStatus();
}

Operation CompressedTier::StartPrefetch(std::string_view key) {
  return base_->StartPrefetch(key);
}

absl::Status CompressedTier::Drop(std::string_view key) {
  return base_->Drop(key);
}

absl::StatusOr<BlockStat> CompressedTier::Stat(std::string_view key) const {
  TESSERA_ASSIGN_OR_RETURN(BlockStat stat, base_->Stat(key));
  stat.bytes = stat.info.original_bytes;
  stat.info.original_bytes = -1;
  return stat;
}

std::vector<std::string> CompressedTier::Keys() const { return base_->Keys(); }

std::vector<TierUsage> CompressedTier::usage() const {
  std::vector<TierUsage> usage = base_->usage();
  usage.push_back({scratch_->name(), scratch_->usage()});
  return usage;
}

Compression CompressedTier::compression() const {
  Compression sum;
  for (const std::string& key : Keys()) {
    const absl::StatusOr<BlockStat> stat = Stat(key);
    if (!stat.ok()) continue;  // Dropped meanwhile.
    sum.original_bytes += stat->bytes;
    sum.held_bytes += stat->held_bytes;
  }
  return sum;
}

}  // namespace tessera::offload
