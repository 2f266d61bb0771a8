#include "collectives/algorithms/layered.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/algorithms/doubling.h"
#include "collectives/algorithms/exchange.h"
#include "collectives/algorithms/hierarchy.h"
#include "collectives/algorithms/rank_group.h"
#include "collectives/algorithms/ring.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/algorithms/trees.h"
#include "collectives/operation/blocks.h"

namespace tessera::collectives {
namespace {

// Flat algorithms, selected by size, for ranks that are equally near. Arguments
// as in ring.h and trees.h; number 0 is the root.

bool IsSmall(int64_t count, int64_t element) {
  return count * element <= kSmallMessageBytes;
}

TreeTask TaskOf(const RankGroup& group, int64_t count, ConstVectorView input,
                VectorView output, const Reducer& reducer, int64_t chunk) {
  return {.kind = TreeKindFor(count * input.element, group.size()),
          .count = count,
          .chunk = chunk,
          .input = input,
          .output = output,
          .reducer = reducer};
}

absl::Status FlatAllReduce(const RankGroup& group, int64_t count,
                           ConstVectorView input, VectorView output,
                           const Reducer& reducer, int64_t chunk) {
  return IsSmall(count, input.element)
             ? DoublingAllReduce(group, count, input, output, reducer, chunk)
             : RingAllReduce(group, count, input, output, reducer, chunk);
}

absl::Status FlatReduce(const RankGroup& group, int64_t count,
                        ConstVectorView input, VectorView output,
                        const Reducer& reducer, int64_t chunk) {
  return TreeReduce(group, TaskOf(group, count, input, output, reducer, chunk));
}

absl::Status FlatReduceScatter(const RankGroup& group, const Blocks& blocks,
                               ConstVectorView input, VectorView own,
                               const Reducer& reducer, int64_t chunk) {
  return IsSmall(blocks.total(), input.element)
             ? OrderedReduceScatter(group, blocks, input, own, reducer.last,
                                    chunk)
             : RingReduceScatter(group, blocks, input, own, reducer, chunk);
}

absl::Status FlatAllGather(const RankGroup& group, const Blocks& blocks,
                           VectorView all, int64_t chunk) {
  return IsSmall(blocks.total(), all.element)
             ? BruckAllGather(group, blocks, all)
             : RingAllGather(group, blocks, all, chunk);
}

absl::Status FlatBroadcast(const RankGroup& group, int64_t count,
                           VectorView data, int64_t chunk) {
  return TreeBroadcast(group, TaskOf(group, count, data, data, {}, chunk));
}

constexpr std::string_view kWithin = "within a group";
constexpr std::string_view kAcross = "across groups";

}  // namespace

Layered::Layered(const RankGroup& group, const Hierarchy& hierarchy,
                 int64_t chunk)
    : group_(group),
      hierarchy_(hierarchy),
      chunk_(chunk),
      everybody_(static_cast<size_t>(group.size())) {
  std::iota(everybody_.begin(), everybody_.end(), 0);
}

absl::StatusOr<RankGroup> Layered::Among(const RankList& list,
                                         std::string_view what) {
  const auto me = std::find(list.begin(), list.end(), group_.rank());
  return group_.Select(list, me - list.begin(), what);
}

absl::StatusOr<VectorView> Layered::Take(int64_t count, int64_t element) {
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                           group_.Scratch(count * element));
  return VectorView(memory.data(), element);
}

RankList Layered::RootFirst(int64_t root) const {
  RankList list = everybody_;
  std::rotate(list.begin(), list.begin() + root, list.begin() + root + 1);
  return list;
}

absl::Status Layered::AllReduce(int64_t count, ConstVectorView input,
                                VectorView output, const Reducer& reducer) {
  return AllReduceAt(everybody_, 0, count, input, output, reducer);
}

absl::Status Layered::AllReduceAt(const RankList& list, int64_t level,
                                  int64_t count, ConstVectorView input,
                                  VectorView output, const Reducer& reducer) {
  if (level == hierarchy_.levels()) {
    TESSERA_ASSIGN_OR_RETURN(const RankGroup group, Among(list, kAcross));
    return FlatAllReduce(group, count, input, output, reducer, chunk_);
  }
  const Layer layer = LayerOf(hierarchy_, level, list, group_.rank());
  if (layer.IsTrivial()) {
    return AllReduceAt(list, level + 1, count, input, output, reducer);
  }
  if (!layer.even || count * input.element <= kSmallMessageBytes) {
    return AllReduceByLeaders(layer, level, count, input, output, reducer);
  }
  TESSERA_ASSIGN_OR_RETURN(const RankGroup group, Among(layer.mine(), kWithin));
  const Blocks blocks = Blocks::Balanced(group.size(), count);
  const VectorView own = output.From(blocks.offset(layer.place));
  TESSERA_RETURN_IF_ERROR(FlatReduceScatter(group, blocks, input, own,
                                            reducer.WithoutLast(), chunk_));
  TESSERA_RETURN_IF_ERROR(AllReduceAt(layer.AtPlace(layer.place), level + 1,
                                      blocks.count(layer.place), own, own,
                                      reducer));
  return FlatAllGather(group, blocks, output, chunk_);
}

absl::Status Layered::AllReduceByLeaders(const Layer& layer, int64_t level,
                                         int64_t count, ConstVectorView input,
                                         VectorView output,
                                         const Reducer& reducer) {
  TESSERA_ASSIGN_OR_RETURN(const RankGroup group, Among(layer.mine(), kWithin));
  TESSERA_RETURN_IF_ERROR(
      FlatReduce(group, count, input, output, reducer.WithoutLast(), chunk_));
  if (layer.place == 0) {
    TESSERA_RETURN_IF_ERROR(AllReduceAt(layer.Leaders(), level + 1, count,
                                        output, output, reducer));
  }
  return FlatBroadcast(group, count, output, chunk_);
}

absl::Status Layered::Reduce(int64_t root, int64_t count, ConstVectorView input,
                             VectorView output, const Reducer& reducer) {
  if (group_.rank() != root) output = {};
  return ReduceAt(RootFirst(root), 0, count, input, output, reducer);
}

absl::Status Layered::ReduceAt(const RankList& list, int64_t level,
                               int64_t count, ConstVectorView input,
                               VectorView output, const Reducer& reducer) {
  if (level == hierarchy_.levels()) {
    TESSERA_ASSIGN_OR_RETURN(const RankGroup group, Among(list, kAcross));
    return FlatReduce(group, count, input, output, reducer, chunk_);
  }
  const Layer layer = LayerOf(hierarchy_, level, list, group_.rank());
  if (layer.IsTrivial()) {
    return ReduceAt(list, level + 1, count, input, output, reducer);
  }
  TESSERA_ASSIGN_OR_RETURN(const RankGroup group, Among(layer.mine(), kWithin));
  if (layer.place == 0 && output.data == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(output, Take(count, input.element));
  }
  TESSERA_RETURN_IF_ERROR(
      FlatReduce(group, count, input, output, reducer.WithoutLast(), chunk_));
  if (layer.place != 0) return absl::OkStatus();
  return ReduceAt(layer.Leaders(), level + 1, count, output, output, reducer);
}

absl::Status Layered::Broadcast(int64_t root, int64_t count, VectorView data) {
  return BroadcastAt(RootFirst(root), 0, count, data);
}

absl::Status Layered::BroadcastAt(const RankList& list, int64_t level,
                                  int64_t count, VectorView data) {
  if (level == hierarchy_.levels()) {
    TESSERA_ASSIGN_OR_RETURN(const RankGroup group, Among(list, kAcross));
    return FlatBroadcast(group, count, data, chunk_);
  }
  const Layer layer = LayerOf(hierarchy_, level, list, group_.rank());
  if (layer.IsTrivial()) return BroadcastAt(list, level + 1, count, data);
  if (layer.place == 0) {
    TESSERA_RETURN_IF_ERROR(
        BroadcastAt(layer.Leaders(), level + 1, count, data));
  }
  TESSERA_ASSIGN_OR_RETURN(const RankGroup group, Among(layer.mine(), kWithin));
  return FlatBroadcast(group, count, data, chunk_);
}

// All-gather and reduce-scatter of Layered.

int64_t Layered::Layout::Start(const RankList& list) const {
  int64_t start = std::numeric_limits<int64_t>::max();
  for (int64_t rank : list) {
    start = std::min(start, offset[static_cast<size_t>(rank)]);
  }
  return start;
}

int64_t Layered::Layout::Total(const RankList& list) const {
  int64_t total = 0;
  for (int64_t rank : list) total += count[static_cast<size_t>(rank)];
  return total;
}

Blocks Layered::Layout::BlocksOf(const RankList& list) const {
  std::vector<int64_t> counts;
  for (int64_t rank : list) counts.push_back(count[static_cast<size_t>(rank)]);
  return Blocks::Of(counts);
}

Layered::Layout Layered::Layout::OfLeaders(const Layer& layer) const {
  Layout leaders = *this;
  for (const RankList& members : layer.groups) {
    leaders.count[static_cast<size_t>(members.front())] = Total(members);
  }
  return leaders;
}

Layered::Layout Layered::LayoutOf(const Blocks& blocks) const {
  Layout layout;
  layout.order = BlockOrder(hierarchy_, 0, everybody_);
  layout.in_order = layout.order == everybody_;
  layout.offset.resize(everybody_.size());
  layout.count.resize(everybody_.size());
  int64_t offset = 0;
  for (int64_t rank : layout.order) {
    layout.offset[static_cast<size_t>(rank)] = offset;
    layout.count[static_cast<size_t>(rank)] = blocks.count(rank);
    offset += blocks.count(rank);
  }
  return layout;
}

absl::Status Layered::AllGather(const Blocks& blocks, VectorView all) {
  const Layout layout = LayoutOf(blocks);
  if (layout.in_order) return AllGatherAt(everybody_, 0, layout, all);
  TESSERA_ASSIGN_OR_RETURN(const VectorView work,
                           Take(blocks.total(), all.element));
  const int64_t me = group_.rank();
  CopyBytes(work.at(layout.offset[static_cast<size_t>(me)]),
            all.at(blocks.offset(me)), blocks.count(me) * all.element);
  TESSERA_RETURN_IF_ERROR(AllGatherAt(everybody_, 0, layout, work));
  group_.Enter(Phase::kCopying);
  for (int64_t rank : everybody_) {
    CopyBytes(all.at(blocks.offset(rank)),
              work.at(layout.offset[static_cast<size_t>(rank)]),
              blocks.count(rank) * all.element);
  }
  return absl::OkStatus();
}

absl::Status Layered::AllGatherAt(const RankList& list, int64_t level,
                                  const Layout& layout, VectorView all) {
  if (level == hierarchy_.levels()) {
    TESSERA_ASSIGN_OR_RETURN(const RankGroup group, Among(list, kAcross));
    return FlatAllGather(group, layout.BlocksOf(list),
                         all.From(layout.Start(list)), chunk_);
  }
  const Layer layer = LayerOf(hierarchy_, level, list, group_.rank());
  if (layer.IsTrivial()) return AllGatherAt(list, level + 1, layout, all);
  if (!layer.even) {
    return AllGatherByLeaders(layer, list, level, layout, all);
  }
  TESSERA_RETURN_IF_ERROR(
      AllGatherAt(layer.AtPlace(layer.place), level + 1, layout, all));
  std::vector<int64_t> counts;
  for (size_t place = 0; place < layer.mine().size(); ++place) {
    counts.push_back(layout.Total(layer.AtPlace(static_cast<int64_t>(place))));
  }
  TESSERA_ASSIGN_OR_RETURN(const RankGroup group, Among(layer.mine(), kWithin));
  return FlatAllGather(group, Blocks::Of(counts), all.From(layout.Start(list)),
                       chunk_);
}

absl::Status Layered::AllGatherByLeaders(const Layer& layer,
                                         const RankList& list, int64_t level,
                                         const Layout& layout, VectorView all) {
  const auto me = static_cast<size_t>(group_.rank());
  TESSERA_ASSIGN_OR_RETURN(const RankGroup group, Among(layer.mine(), kWithin));
  TESSERA_RETURN_IF_ERROR(BinomialGather(
      group, 0, layout.BlocksOf(layer.mine()), all.From(layout.offset[me]),
      all.From(layout.Start(layer.mine()))));
  if (layer.place == 0) {
    TESSERA_RETURN_IF_ERROR(
        AllGatherAt(layer.Leaders(), level + 1, layout.OfLeaders(layer), all));
  }
  return FlatBroadcast(group, layout.Total(list), all.From(layout.Start(list)),
                       chunk_);
}

absl::Status Layered::ReduceScatter(const Blocks& blocks, ConstVectorView input,
                                    VectorView own, const Reducer& reducer) {
  const Layout layout = LayoutOf(blocks);
  if (layout.in_order) {
    return ReduceScatterAt(everybody_, 0, layout, input, own, reducer);
  }
  TESSERA_ASSIGN_OR_RETURN(const VectorView work,
                           Take(blocks.total(), input.element));
  group_.Enter(Phase::kCopying);
  for (int64_t rank : everybody_) {
    CopyBytes(work.at(layout.offset[static_cast<size_t>(rank)]),
              input.at(blocks.offset(rank)),
              blocks.count(rank) * input.element);
  }
  return ReduceScatterAt(everybody_, 0, layout, work, own, reducer);
}

absl::Status Layered::ReduceScatterAt(const RankList& list, int64_t level,
                                      const Layout& layout,
                                      ConstVectorView input, VectorView own,
                                      const Reducer& reducer) {
  if (level == hierarchy_.levels()) {
    TESSERA_ASSIGN_OR_RETURN(const RankGroup group, Among(list, kAcross));
    return FlatReduceScatter(group, layout.BlocksOf(list), input, own, reducer,
                             chunk_);
  }
  const Layer layer = LayerOf(hierarchy_, level, list, group_.rank());
  if (layer.IsTrivial()) {
    return ReduceScatterAt(list, level + 1, layout, input, own, reducer);
  }
  if (!layer.even) {
    return ReduceScatterByLeaders(layer, list, level, layout, input, own,
                                  reducer);
  }
  std::vector<int64_t> counts;
  for (size_t place = 0; place < layer.mine().size(); ++place) {
    counts.push_back(layout.Total(layer.AtPlace(static_cast<int64_t>(place))));
  }
  TESSERA_ASSIGN_OR_RETURN(const RankGroup group, Among(layer.mine(), kWithin));
  TESSERA_ASSIGN_OR_RETURN(
      const VectorView part,
      Take(counts[static_cast<size_t>(layer.place)], input.element));
  TESSERA_RETURN_IF_ERROR(FlatReduceScatter(
      group, Blocks::Of(counts), input, part, reducer.WithoutLast(), chunk_));
  return ReduceScatterAt(layer.AtPlace(layer.place), level + 1, layout, part,
                         own, reducer);
}

absl::Status Layered::ReduceScatterByLeaders(
    const Layer& layer, const RankList& list, int64_t level,
    const Layout& layout, ConstVectorView input, VectorView own,
    const Reducer& reducer) {
  TESSERA_ASSIGN_OR_RETURN(const RankGroup group, Among(layer.mine(), kWithin));
  const bool leads = layer.place == 0;
  const int64_t total = layout.Total(list);
  TESSERA_ASSIGN_OR_RETURN(const VectorView sums,
                           Take(leads ? total : 0, input.element));
  TESSERA_ASSIGN_OR_RETURN(
      const VectorView mine,
      Take(leads ? layout.Total(layer.mine()) : 0, input.element));
  TESSERA_RETURN_IF_ERROR(
      FlatReduce(group, total, input, sums, reducer.WithoutLast(), chunk_));
  if (leads) {
    TESSERA_RETURN_IF_ERROR(ReduceScatterAt(layer.Leaders(), level + 1,
                                            layout.OfLeaders(layer), sums, mine,
                                            reducer));
  }
  return BinomialScatter(group, 0, layout.BlocksOf(layer.mine()), mine, own);
}

}  // namespace tessera::collectives
