#include "collectives/bootstrap/entry_check.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/store.h"
#include "collectives/channel/payload.h"

namespace tessera::collectives::bootstrap {

std::string ShowKey(std::string_view key) {
  return absl::StrCat("\"", absl::CHexEscape(key.substr(0, 80)), "\"",
                      key.size() > 80 ? "..." : "");
}

absl::Status CheckKey(std::string_view key) {
  if (!key.empty() && key.size() <= kMaxStoreKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the key ", ShowKey(key), " has ", key.size(),
                   " bytes; use 1 to ", kMaxStoreKeyBytes));
}

absl::Status CheckEntry(int64_t reads, std::string_view key,
                        std::string_view value) {
  TESSERA_RETURN_IF_ERROR(CheckKey(key));
  if (value.size() > kMaxStoreValueBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the value of ", ShowKey(key), " has ", value.size(),
                     " bytes; use at most ", kMaxStoreValueBytes));
  }
  if (reads >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(ShowKey(key), " is set for ", reads,
                   " reads; use a positive number, or 0 for no end"));
}

absl::Status CheckRankList(std::string_view prefix, std::span<const Rank> ranks,
                           int64_t size) {
  if (prefix.size() > kMaxStoreKeyBytes || ranks.size() > kMaxListedRanks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a wait for ", ranks.size(), " ranks under the prefix ",
        ShowKey(prefix), " of ", prefix.size(), " bytes; use at most ",
        kMaxListedRanks, " and ", kMaxStoreKeyBytes));
  }
  for (const Rank rank : ranks) {
    if (rank >= Rank(0) && rank.value() < size) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank.value(), " is not below the job's ", size, " ranks"));
  }
  return absl::OkStatus();
}

}  // namespace tessera::collectives::bootstrap
