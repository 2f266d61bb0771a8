#include "collectives/algorithms/layers.h"

#include <algorithm>

namespace tessera::collectives {
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
