#include "zero3/checkpoint/checkpoint_manifest.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/quoted.h"

namespace tessera::zero3 {

absl::StatusOr<const CheckpointPart*> CheckpointManifest::Find(
    std::string_view part) const {
  constexpr size_t kShown = 8;
  std::string names;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].name == part) return &parts[i];
    if (i < kShown) {
      absl::StrAppend(&names, i == 0 ? "" : ", ", Quoted(parts[i].name));
    }
  }
  return absl::NotFoundError(absl::StrCat(
      "the checkpoint has no part ", Quoted(part), "; it has ", names,
      parts.size() > kShown
          ? absl::StrCat(" and ", parts.size() - kShown, " more")
          : ""));
}

std::string ShardFileName(std::string_view part, int64_t rank) {
  return absl::StrCat(part, part.empty() ? "" : ".",
                      absl::StrFormat("rank-%05d.state", rank));
}

absl::Status CheckPartName(std::string_view part) {
  const auto is_allowed = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' ||
           c == '_';
  };
  if (part.size() <= kMaxPartName &&
      std::all_of(part.begin(), part.end(), is_allowed)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("part ", Quoted(part), "; allowed: at most ", kMaxPartName,
                   " letters, digits, '-' and '_', as in \"tp1-pp0\""));
}

}  // namespace tessera::zero3
