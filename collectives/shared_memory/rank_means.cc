#include "collectives/shared_memory/rank_means.h"

#include <algorithm>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tessera::collectives {
namespace {

absl::Status NotMeans(std::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text.substr(0, 64),
                   "\" are not the means of a rank, such as \"2 1 0,1\""));
}

}  // namespace

std::string RankMeans::ToString() const {
  return absl::StrCat(usable_processors, " ", reads_peers ? 1 : 0, " ",
                      absl::StrJoin(allowed_processors, ","));
}

absl::StatusOr<RankMeans> RankMeans::Parse(std::string_view text) {
  const std::vector<std::string_view> parts = absl::StrSplit(text, ' ');
  RankMeans means;
  if (parts.size() != 3 ||
      !absl::SimpleAtoi(parts[0], &means.usable_processors) ||
      means.usable_processors < 1 || (parts[1] != "0" && parts[1] != "1")) {
    return NotMeans(text);
  }
  means.reads_peers = parts[1] == "1";
  for (std::string_view number :
       absl::StrSplit(parts[2], ',', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(number, &means.allowed_processors.emplace_back())) {
      return NotMeans(text);
    }
  }
  return means;
}

int64_t ProcessorsTogether(std::span<const RankMeans> ranks) {
  std::set<int> all;
  for (const RankMeans& rank : ranks) {
    all.insert(rank.allowed_processors.begin(), rank.allowed_processors.end());
  }
  auto together = std::max<int64_t>(1, static_cast<int64_t>(all.size()));
  for (const RankMeans& rank : ranks) {
    const auto allowed = static_cast<int64_t>(rank.allowed_processors.size());
    if (rank.usable_processors < allowed) {
      together = std::min(together, rank.usable_processors);
    }
  }
  return together;
}

}  // namespace tessera::collectives
