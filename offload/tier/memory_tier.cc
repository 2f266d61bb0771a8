#include "offload/tier/memory_tier.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tessera::offload {

std::string QuoteKey(std::string_view key) {
  constexpr size_t kShown = 64;
  return absl::StrCat("\"", absl::CHexEscape(key.substr(0, kShown)),
                      key.size() > kShown ? "...\"" : "\"");
}

absl::Status CheckBlock(std::string_view tier, std::string_view key,
                        BlockInfo info) {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("tier ", tier, ": the key ", QuoteKey(key), " has ",
                     key.size(), " bytes; a key has 1 to ", kMaxKeyBytes));
  }
  if (!IsValid(info.purpose) || !tessera::IsValid(info.dtype) ||
      info.original_bytes < -1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tier ", tier, ": block ", QuoteKey(key), " has purpose ",
        static_cast<int>(info.purpose), ", dtype ",
        static_cast<int>(info.dtype), " and ", info.original_bytes,
        " original bytes; use a value of Purpose, one of DType, and at least "
        "-1"));
  }
  return absl::OkStatus();
}

absl::Status NoSuchBlock(std::string_view tier, std::string_view key) {
  return absl::NotFoundError(absl::StrCat("tier ", tier, " holds no block ",
                                          QuoteKey(key),
                                          "; Put it first, or call Contains"));
}

absl::Status CheckRange(std::string_view tier, std::string_view key,
                        int64_t bytes, std::optional<int64_t> offset,
                        size_t size) {
  const auto wanted = static_cast<int64_t>(size);
  if (!offset.has_value()) {
    if (wanted == bytes) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "tier ", tier, ": block ", QuoteKey(key), " has ", bytes,
        " bytes, the buffer for it ", size,
        "; give the size that Stat returns, or read a part by GetRange"));
  }
  if (*offset >= 0 && *offset <= bytes && wanted <= bytes - *offset) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat(
      "tier ", tier, ": block ", QuoteKey(key), " has ", bytes, " bytes; ",
      size, " bytes from offset ", *offset, " are outside it"));
}

Operation MemoryTier::StartPrefetch(std::string_view key) {
  return Operation(Stat(key).status());
}

bool MemoryTier::IsLossless(Purpose, DType) const { return true; }

absl::StatusOr<BlockView> MemoryTier::Map(std::string_view key) {
  return absl::UnimplementedError(
      absl::StrCat("tier ", name(), ": block ", QuoteKey(key),
                   " cannot be accessed in place; use Get"));
}

absl::StatusOr<BlockView> MemoryTier::MapNew(std::string_view key,
                                             int64_t /*bytes*/,
                                             BlockInfo /*info*/) {
  return absl::UnimplementedError(
      absl::StrCat("tier ", name(), ": block ", QuoteKey(key),
                   " cannot be created in place; use Put"));
}

}  // namespace tessera::offload
