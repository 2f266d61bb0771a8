#include "collectives/algorithms/hierarchy.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::collectives {

namespace {

using topology::Rank;

absl::Status Refuse(int64_t level, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("hierarchy, level ", level, ": ", what));
}

// Renumbers labels in the order in which they first appear.
std::vector<int64_t> Number(std::span<const int64_t> labels) {
  absl::flat_hash_map<int64_t, int64_t> numbers;
  std::vector<int64_t> result;
  result.reserve(labels.size());
  for (int64_t label : labels) {
    const auto next = static_cast<int64_t>(numbers.size());
    result.push_back(numbers.emplace(label, next).first->second);
  }
  return result;
}

std::vector<int64_t> SizesOf(std::span<const int64_t> groups) {
  std::vector<int64_t> sizes;
  for (int64_t group : groups) {
    if (group >= static_cast<int64_t>(sizes.size())) sizes.push_back(0);
    ++sizes[static_cast<size_t>(group)];
  }
  return sizes;
}

// Checks that ranks in the same group are also in the same group at the next
// level.
absl::Status CheckNested(std::span<const int64_t> inner,
                         std::span<const int64_t> outer, int64_t level) {
  std::vector<int64_t> outer_of(inner.size(), -1);
  for (size_t rank = 0; rank < inner.size(); ++rank) {
    int64_t& expected = outer_of[static_cast<size_t>(inner[rank])];
    if (expected < 0) expected = outer[rank];
    if (expected != outer[rank]) {
      return Refuse(level, absl::StrCat("rank ", rank,
                                        " shares a group with ranks of "
                                        "another group of level ",
                                        level + 1, "; levels must nest"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Hierarchy> Hierarchy::Flat(int64_t ranks) {
  if (ranks >= 1) return Hierarchy(ranks, {});
  return absl::InvalidArgumentError(absl::StrCat(
      "cannot create a hierarchy of ", ranks, " ranks; at least 1 is needed"));
}

absl::StatusOr<Hierarchy> Hierarchy::FromLabels(
    std::span<const std::vector<int64_t>> labels) {
  if (labels.empty() || labels[0].empty()) {
    return absl::InvalidArgumentError(
        "a hierarchy needs at least one level of at least one rank; "
        "Hierarchy::Flat is the one without levels");
  }
  std::vector<std::vector<int64_t>> groups;
  for (size_t level = 0; level < labels.size(); ++level) {
    const auto number = static_cast<int64_t>(level);
    if (labels[level].size() != labels[0].size()) {
      return Refuse(number,
                    absl::StrCat("has ", labels[level].size(),
                                 " ranks, level 0 has ", labels[0].size()));
    }
    groups.push_back(Number(labels[level]));
    if (level == 0) continue;
    TESSERA_RETURN_IF_ERROR(
        CheckNested(groups[level - 1], groups[level], number - 1));
  }
  return Hierarchy(static_cast<int64_t>(labels[0].size()), std::move(groups));
}

int64_t Hierarchy::LargestGroup() const {
  if (groups_.empty()) return ranks_;
  const std::vector<int64_t> sizes = SizesOf(groups_.back());
  return *std::max_element(sizes.begin(), sizes.end());
}

Hierarchy Hierarchy::Restrict(std::span<const Rank> members) const {
  std::vector<std::vector<int64_t>> groups;
  for (const std::vector<int64_t>& level : groups_) {
    std::vector<int64_t> labels;
    labels.reserve(members.size());
    for (Rank member : members) {
      labels.push_back(level[static_cast<size_t>(member.value())]);
    }
    groups.push_back(Number(labels));
  }
  return Hierarchy(static_cast<int64_t>(members.size()), std::move(groups));
}

namespace {

void Append(RankList& to, const RankList& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

RankList Layer::Leaders() const {
  RankList leaders;
  for (const RankList& members : groups) leaders.push_back(members.front());
  return leaders;
}

RankList Layer::AtPlace(int64_t place) const {
  RankList list;
  for (const RankList& members : groups) {
    list.push_back(members[static_cast<size_t>(place)]);
  }
  return list;
}

Layer LayerOf(const Hierarchy& hierarchy, int64_t level,
              std::span<const int64_t> list, int64_t me) {
  Layer layer;
  std::vector<int64_t> number(static_cast<size_t>(hierarchy.ranks()), -1);
  for (int64_t rank : list) {
    int64_t& group = number[static_cast<size_t>(
        hierarchy.GroupOf(level, topology::Rank(rank)))];
    if (group < 0) {
      group = static_cast<int64_t>(layer.groups.size());
      layer.groups.emplace_back();
    }
    RankList& members = layer.groups[static_cast<size_t>(group)];
    if (rank == me) {
      layer.group = group;
      layer.place = static_cast<int64_t>(members.size());
    }
    members.push_back(rank);
  }
  layer.even = std::all_of(layer.groups.begin(), layer.groups.end(),
                           [&](const RankList& members) {
                             return members.size() == layer.groups[0].size();
                           });
  return layer;
}

RankList BlockOrder(const Hierarchy& hierarchy, int64_t level,
                    const RankList& list) {
  if (level == hierarchy.levels()) return list;
  const Layer layer = LayerOf(hierarchy, level, list, -1);
  if (layer.IsTrivial()) return BlockOrder(hierarchy, level + 1, list);
  RankList order;
  if (layer.even) {
    const auto places = static_cast<int64_t>(layer.groups[0].size());
    for (int64_t place = 0; place < places; ++place) {
      Append(order, BlockOrder(hierarchy, level + 1, layer.AtPlace(place)));
    }
    return order;
  }
  const RankList leaders = layer.Leaders();
  for (int64_t leader : BlockOrder(hierarchy, level + 1, leaders)) {
    const auto group = std::find(leaders.begin(), leaders.end(), leader);
    Append(order, layer.groups[static_cast<size_t>(group - leaders.begin())]);
  }
  return order;
}

}  // namespace tessera::collectives
