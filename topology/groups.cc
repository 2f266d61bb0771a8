#include "topology/groups.h"

#include <numeric>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::topology {

Digits::Digits(std::span<const Digit> digits) {
  absl::InlinedVector<Digit, 4> sorted(digits.begin(), digits.end());
  absl::c_sort(sorted, [](const Digit& a, const Digit& b) {
    return a.stride < b.stride;
  });
  for (const Digit& digit : sorted) {
    if (digit.size == 1) continue;
    count_ *= digit.size;
    if (!digits_.empty() &&
        digits_.back().stride * digits_.back().size == digit.stride) {
      digits_.back().size *= digit.size;
    } else {
      digits_.push_back(digit);
    }
  }
}

absl::StatusOr<std::vector<Digits>> Digits::Split(
    std::span<const int64_t> sizes) const {
  std::vector<Digits> parts;
  size_t next = 0;
  Digit rest;  // The remainder of digits_[next - 1].
  for (const int64_t size : sizes) {
    std::vector<Digit> part;
    int64_t wanted = size;
    while (wanted > 1) {
      if (rest.size == 1) {
        if (next == digits_.size()) break;
        rest = digits_[next++];
      }
      const int64_t taken = std::gcd(wanted, rest.size);
      // A digit may be used in part only if this completes the requested size.
      if (taken != wanted && taken != rest.size) break;
      part.push_back({rest.stride, taken});
      rest = {rest.stride * taken, rest.size / taken};
      wanted /= taken;
    }
    if (wanted != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("a part of size ", size,
                       " does not end where one of the split axes does"));
    }
    parts.emplace_back(part);
  }
  if (rest.size != 1 || next != digits_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the parts do not multiply to ", count_));
  }
  return parts;
}

Digits Union(const Digits& a, const Digits& b) {
  absl::InlinedVector<Digit, 8> all(a.digits_.begin(), a.digits_.end());
  all.insert(all.end(), b.digits_.begin(), b.digits_.end());
  return Digits(all);
}

absl::Status Groups::CheckRank(Rank rank) const {
  const int64_t world = count() * size();
  if (rank >= first_rank_ && OffsetOf(rank) < world) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "rank ", rank.value(), " is outside the mesh's ranks ",
      first_rank_.value(), " to ", (first_rank_ + (world - 1)).value()));
}

absl::Status Groups::CheckGroup(int64_t group) const {
  if (group >= 0 && group < count()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "group ", group, " is outside the groups 0 to ", count() - 1));
}

absl::StatusOr<int64_t> Groups::GroupOf(Rank rank) const {
  TESSERA_RETURN_IF_ERROR(CheckRank(rank));
  return outside_.Gather(OffsetOf(rank));
}

absl::StatusOr<int64_t> Groups::IndexOf(Rank rank) const {
  TESSERA_RETURN_IF_ERROR(CheckRank(rank));
  return inside_.Gather(OffsetOf(rank));
}

absl::StatusOr<Rank> Groups::RankAt(int64_t group, int64_t index) const {
  TESSERA_RETURN_IF_ERROR(CheckGroup(group));
  if (index < 0 || index >= size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "index ", index, " is outside the group's members 0 to ", size() - 1));
  }
  return RankOf(group, index);
}

absl::StatusOr<std::vector<Rank>> Groups::Members(int64_t group) const {
  TESSERA_RETURN_IF_ERROR(CheckGroup(group));
  std::vector<Rank> members(static_cast<size_t>(size()));
  for (int64_t i = 0; i < size(); ++i) {
    members[static_cast<size_t>(i)] = RankOf(group, i);
  }
  return members;
}

absl::StatusOr<std::vector<Rank>> Groups::MembersWith(Rank rank) const {
  TESSERA_ASSIGN_OR_RETURN(const int64_t group, GroupOf(rank));
  return Members(group);
}

std::vector<std::vector<Rank>> Groups::All() const {
  std::vector<int64_t> spread(static_cast<size_t>(size()));
  for (size_t i = 0; i < spread.size(); ++i) {
    spread[i] = inside_.Spread(static_cast<int64_t>(i));
  }
  std::vector<std::vector<Rank>> all(static_cast<size_t>(count()));
  for (size_t group = 0; group < all.size(); ++group) {
    const Rank first = RankOf(static_cast<int64_t>(group), 0);
    all[group].reserve(spread.size());
    for (const int64_t offset : spread) all[group].push_back(first + offset);
  }
  return all;
}

absl::StatusOr<std::optional<Rank>> Groups::Shift(Rank rank, int64_t steps,
                                                  Boundary boundary) const {
  TESSERA_ASSIGN_OR_RETURN(const int64_t index, IndexOf(rank));
  const int64_t group = outside_.Gather(OffsetOf(rank));
  if (boundary == Boundary::kCyclic) {
    const int64_t forward = (steps % size() + size()) % size();
    const int64_t to_end = size() - index;
    return RankOf(group, forward < to_end ? index + forward : forward - to_end);
  }
  if (steps < -index || steps >= size() - index) return std::nullopt;
  return RankOf(group, index + steps);
}

absl::StatusOr<Rank> Groups::Head(Rank rank) const {
  TESSERA_ASSIGN_OR_RETURN(const int64_t group, GroupOf(rank));
  return RankOf(group, 0);
}

absl::StatusOr<Rank> Groups::Tail(Rank rank) const {
  TESSERA_ASSIGN_OR_RETURN(const int64_t group, GroupOf(rank));
  return RankOf(group, size() - 1);
}

}  // namespace tessera::topology
