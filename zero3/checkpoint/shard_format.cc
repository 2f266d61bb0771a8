#include "zero3/checkpoint/shard_format.h"

#include <algorithm>
#include <string_view>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/little_endian.h"
#include "base/status_macros.h"
#include "offload/file/crc32c.h"
#include "offload/optimizer/parameter_range.h"
#include "zero3/layout/state_layout.h"

namespace tessera::zero3 {

namespace {

constexpr std::string_view kHeaderMagic = "TessStat";
constexpr std::string_view kFooterMagic = "TessEnd.";
constexpr size_t kHeaderCrc = kShardHeaderBytes - 4;
constexpr size_t kFooterCrc = 20;
constexpr size_t kFooterMagicAt = 24;

// Writes the fields of the format in order.
class Putter {
 public:
  explicit Putter(std::byte* at) : at_(at) {}

  template <typename T>
  Putter& Put(int64_t value) {
    StoreLittleEndian(static_cast<T>(value), at_);
    at_ += sizeof(T);
    return *this;
  }
  Putter& Put(std::string_view text) {
    for (const char c : text) *at_++ = static_cast<std::byte>(c);
    return *this;
  }

 private:
  std::byte* at_;
};

class Taker {
 public:
  explicit Taker(const std::byte* at) : at_(at) {}

  // Values above 2^63-1 become negative, and are rejected as negative values.
  template <typename T>
  int64_t Take() {
    const T value = LoadLittleEndian<T>(at_);
    at_ += sizeof(T);
    return static_cast<int64_t>(value);
  }

 private:
  const std::byte* at_;
};

bool Begins(std::span<const std::byte> bytes, std::string_view magic) {
  return std::equal(
      magic.begin(), magic.end(), bytes.begin(),
      [](char c, std::byte b) { return static_cast<std::byte>(c) == b; });
}

absl::Status Wrong(std::string_view what) {
  return absl::InvalidArgumentError(what);
}

absl::Status CheckCrc(std::string_view what, std::span<const std::byte> bytes,
                      uint32_t expected) {
  const uint32_t crc = offload::Crc32c(bytes);
  if (crc == expected) return absl::OkStatus();
  return Wrong(absl::StrCat(what, " has the checksum ", absl::Hex(crc),
                            ", but should have ", absl::Hex(expected)));
}

bool IsAllowed(const StateFormat& format) {
  if (!IsValid(format.dtype)) return false;
  if (format.block == 0) return true;
  return format.dtype == DType::kU8 &&
         offload::CheckMomentFormat(
             offload::MomentFormat::Blockwise8(format.block))
             .ok();
}

// The encoding of an entry in the file.
struct RawEntry {
  BlockEntry entry;
  int64_t zero = 0;
  int64_t bytes = 0;
};

RawEntry TakeEntry(const std::byte* at) {
  Taker taker(at);
  RawEntry raw;
  BlockRange& range = raw.entry.range;
  range.parameter = ParameterId(taker.Take<uint32_t>());
  range.part = static_cast<StatePart>(taker.Take<uint8_t>());
  range.format.dtype = static_cast<DType>(taker.Take<uint8_t>());
  raw.zero = taker.Take<uint16_t>();
  range.format.block = taker.Take<uint32_t>();
  raw.entry.crc32c = static_cast<uint32_t>(taker.Take<uint32_t>());
  range.begin = taker.Take<uint64_t>();
  range.end = taker.Take<uint64_t>();
  raw.entry.offset = taker.Take<uint64_t>();
  raw.bytes = taker.Take<uint64_t>();
  return raw;
}

// `offset` is the required begin of the block.
absl::Status CheckEntry(const RawEntry& raw, int64_t offset,
                        int64_t index_offset) {
  const BlockRange& range = raw.entry.range;
  if (!IsValid(range.part) || !IsAllowed(range.format) || raw.zero != 0) {
    return Wrong("an unknown part or format");
  }
  if (range.begin < 0 || range.begin >= range.end ||
      range.end > kMaxLayoutElements || range.bytes() > kMaxShardBlockBytes ||
      range.bytes() != raw.bytes) {
    return Wrong(absl::StrCat("elements ", range.begin, " to ", range.end,
                              " in ", raw.bytes, " bytes; allowed: at most ",
                              kMaxShardBlockBytes));
  }
  if (raw.entry.offset != offset || raw.bytes > index_offset - offset) {
    return Wrong(absl::StrCat("offset ", raw.entry.offset, " instead of ",
                              offset, ", or an end past the index"));
  }
  return absl::OkStatus();
}

bool Follows(const BlockRange& a, const BlockRange& b) {
  const auto key = [](const BlockRange& range) {
    return std::tuple(range.parameter, range.part);
  };
  return key(a) < key(b) ||
         (key(a) == key(b) && a.end <= b.begin && a.format == b.format);
}

}  // namespace

std::array<std::byte, kShardHeaderBytes> FormatShardHeader(
    const ShardHeader& header) {
  std::array<std::byte, kShardHeaderBytes> bytes = {};
  Putter(bytes.data())
      .Put(kHeaderMagic)
      .Put<uint32_t>(kShardVersion)
      .Put<uint32_t>(header.rank)
      .Put<uint32_t>(header.ranks)
      .Put<uint64_t>(header.step);
  Putter(bytes.data() + kHeaderCrc)
      .Put<uint32_t>(offload::Crc32c(std::span(bytes).first(kHeaderCrc)));
  return bytes;
}

absl::StatusOr<ShardHeader> ParseShardHeader(
    std::span<const std::byte, kShardHeaderBytes> bytes) {
  if (!Begins(bytes, kHeaderMagic)) return Wrong("not a shard of a checkpoint");
  Taker taker(bytes.data() + kHeaderMagic.size());
  const int64_t version = taker.Take<uint32_t>();
  TESSERA_RETURN_IF_ERROR(
      CheckCrc("the header", std::span(bytes).first(kHeaderCrc),
               LoadLittleEndian<uint32_t>(bytes.data() + kHeaderCrc)));
  if (version != kShardVersion) {
    return Wrong(absl::StrCat("version ", version, " of the format; ",
                              kShardVersion, " can be read"));
  }
  ShardHeader header;
  header.rank = taker.Take<uint32_t>();
  header.ranks = taker.Take<uint32_t>();
  header.step = taker.Take<uint64_t>();
  if (header.rank >= header.ranks || header.ranks > kMaxShardRanks ||
      header.step < 0) {
    return Wrong(absl::StrCat("rank ", header.rank, " of ", header.ranks,
                              " at step ", header.step, " cannot be"));
  }
  return header;
}

std::vector<std::byte> FormatShardIndex(std::span<const BlockEntry> entries) {
  std::vector<std::byte> bytes(entries.size() *
                               static_cast<size_t>(kShardEntryBytes));
  std::byte* at = bytes.data();
  for (const BlockEntry& entry : entries) {
    const BlockRange& range = entry.range;
    Putter(at)
        .Put<uint32_t>(range.parameter.value())
        .Put<uint8_t>(static_cast<int64_t>(range.part))
        .Put<uint8_t>(static_cast<int64_t>(range.format.dtype))
        .Put<uint16_t>(0)
        .Put<uint32_t>(range.format.block)
        .Put<uint32_t>(entry.crc32c)
        .Put<uint64_t>(range.begin)
        .Put<uint64_t>(range.end)
        .Put<uint64_t>(entry.offset)
        .Put<uint64_t>(range.bytes());
    at += kShardEntryBytes;
  }
  return bytes;
}

absl::StatusOr<std::vector<BlockEntry>> ParseShardIndex(
    std::span<const std::byte> bytes, const ShardFooter& footer) {
  if (static_cast<int64_t>(bytes.size()) / kShardEntryBytes != footer.entries ||
      static_cast<int64_t>(bytes.size()) % kShardEntryBytes != 0) {
    return Wrong(absl::StrCat("an index of ", bytes.size(), " bytes for ",
                              footer.entries, " blocks"));
  }
  TESSERA_RETURN_IF_ERROR(CheckCrc("the index", bytes, footer.index_crc32c));
  std::vector<BlockEntry> entries;
  entries.reserve(static_cast<size_t>(footer.entries));
  int64_t offset = kShardHeaderBytes;
  for (int64_t i = 0; i < footer.entries; ++i) {
    const RawEntry raw = TakeEntry(bytes.data() + i * kShardEntryBytes);
    absl::Status status = CheckEntry(raw, offset, footer.index_offset);
    if (status.ok() && i > 0 &&
        !Follows(entries.back().range, raw.entry.range)) {
      status = Wrong("elements that do not follow those of the block before");
    }
    TESSERA_RETURN_IF_ERROR(status, Annotate(_, absl::StrCat("block ", i)));
    entries.push_back(raw.entry);
    offset += raw.bytes;
  }
  if (offset != footer.index_offset) {
    return Wrong(absl::StrCat("blocks end at offset ", offset,
                              ", the index begins at ", footer.index_offset));
  }
  return entries;
}

std::array<std::byte, kShardFooterBytes> FormatShardFooter(
    const ShardFooter& footer) {
  std::array<std::byte, kShardFooterBytes> bytes = {};
  Putter(bytes.data())
      .Put<uint64_t>(footer.index_offset)
      .Put<uint64_t>(footer.entries)
      .Put<uint32_t>(footer.index_crc32c);
  Putter(bytes.data() + kFooterCrc)
      .Put<uint32_t>(offload::Crc32c(std::span(bytes).first(kFooterCrc)))
      .Put(kFooterMagic);
  return bytes;
}

absl::StatusOr<ShardFooter> ParseShardFooter(
    std::span<const std::byte, kShardFooterBytes> bytes, int64_t file_bytes) {
  if (!Begins(std::span(bytes).subspan(kFooterMagicAt), kFooterMagic)) {
    return Wrong("no footer of a shard: the file was truncated or overwritten");
  }
  TESSERA_RETURN_IF_ERROR(
      CheckCrc("the footer", std::span(bytes).first(kFooterCrc),
               LoadLittleEndian<uint32_t>(bytes.data() + kFooterCrc)));
  Taker taker(bytes.data());
  ShardFooter footer;
  footer.index_offset = taker.Take<uint64_t>();
  footer.entries = taker.Take<uint64_t>();
  footer.index_crc32c = static_cast<uint32_t>(taker.Take<uint32_t>());
  const int64_t room = file_bytes - kShardHeaderBytes - kShardFooterBytes;
  if (footer.entries < 0 || footer.entries > room / kShardEntryBytes ||
      footer.index_offset !=
          file_bytes - kShardFooterBytes - footer.entries * kShardEntryBytes) {
    return Wrong(absl::StrCat("an index of ", footer.entries,
                              " blocks at offset ", footer.index_offset,
                              " in a file of ", file_bytes, " bytes"));
  }
  return footer;
}

}  // namespace tessera::zero3
