// All-gather and reduce-scatter of Layered.

#include <algorithm>
#include <limits>

#include "base/status_macros.h"
#include "collectives/algorithms/binomial.h"
#include "collectives/algorithms/flat_choice.h"
#include "collectives/algorithms/layered.h"

namespace tessera::collectives {
namespace {

constexpr std::string_view kWithin = "within a group";
constexpr std::string_view kAcross = "across groups";

}  // namespace

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
  const int64_t me = party_.rank();
  CopyBytes(work.at(layout.offset[static_cast<size_t>(me)]),
            all.at(blocks.offset(me)), blocks.count(me) * all.element);
  TESSERA_RETURN_IF_ERROR(AllGatherAt(everybody_, 0, layout, work));
  party_.Enter(Phase::kCopying);
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
    TESSERA_ASSIGN_OR_RETURN(const Party party, Among(list, kAcross));
    return FlatAllGather(party, layout.BlocksOf(list),
                         all.From(layout.Start(list)), chunk_);
  }
  const Layer layer = LayerOf(hierarchy_, level, list, party_.rank());
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
  TESSERA_ASSIGN_OR_RETURN(const Party group, Among(layer.mine(), kWithin));
  return FlatAllGather(group, Blocks::Of(counts), all.From(layout.Start(list)),
                       chunk_);
}

absl::Status Layered::AllGatherByLeaders(const Layer& layer,
                                         const RankList& list, int64_t level,
                                         const Layout& layout, VectorView all) {
  const auto me = static_cast<size_t>(party_.rank());
  TESSERA_ASSIGN_OR_RETURN(const Party group, Among(layer.mine(), kWithin));
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
  party_.Enter(Phase::kCopying);
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
    TESSERA_ASSIGN_OR_RETURN(const Party party, Among(list, kAcross));
    return FlatReduceScatter(party, layout.BlocksOf(list), input, own, reducer,
                             chunk_);
  }
  const Layer layer = LayerOf(hierarchy_, level, list, party_.rank());
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
  TESSERA_ASSIGN_OR_RETURN(const Party group, Among(layer.mine(), kWithin));
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
  TESSERA_ASSIGN_OR_RETURN(const Party group, Among(layer.mine(), kWithin));
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
