#include "collectives/algorithms/layered.h"

#include <algorithm>
#include <numeric>

#include "base/status_macros.h"
#include "collectives/algorithms/flat_choice.h"
#include "collectives/algorithms/tree_kind.h"

namespace tessera::collectives {
namespace {

constexpr std::string_view kWithin = "within a group";
constexpr std::string_view kAcross = "across groups";

}  // namespace

Layered::Layered(const Party& party, const Hierarchy& hierarchy, int64_t chunk)
    : party_(party),
      hierarchy_(hierarchy),
      chunk_(chunk),
      everybody_(static_cast<size_t>(party.size())) {
  std::iota(everybody_.begin(), everybody_.end(), 0);
}

absl::StatusOr<Party> Layered::Among(const RankList& list,
                                     std::string_view what) {
  const auto me = std::find(list.begin(), list.end(), party_.rank());
  return party_.Select(list, me - list.begin(), what);
}

absl::StatusOr<VectorView> Layered::Take(int64_t count, int64_t element) {
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                           party_.Scratch(count * element));
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
    TESSERA_ASSIGN_OR_RETURN(const Party party, Among(list, kAcross));
    return FlatAllReduce(party, count, input, output, reducer, chunk_);
  }
  const Layer layer = LayerOf(hierarchy_, level, list, party_.rank());
  if (layer.IsTrivial()) {
    return AllReduceAt(list, level + 1, count, input, output, reducer);
  }
  if (!layer.even || count * input.element <= kSmallMessageBytes) {
    return AllReduceByLeaders(layer, level, count, input, output, reducer);
  }
  TESSERA_ASSIGN_OR_RETURN(const Party group, Among(layer.mine(), kWithin));
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
  TESSERA_ASSIGN_OR_RETURN(const Party group, Among(layer.mine(), kWithin));
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
  if (party_.rank() != root) output = {};
  return ReduceAt(RootFirst(root), 0, count, input, output, reducer);
}

absl::Status Layered::ReduceAt(const RankList& list, int64_t level,
                               int64_t count, ConstVectorView input,
                               VectorView output, const Reducer& reducer) {
  if (level == hierarchy_.levels()) {
    TESSERA_ASSIGN_OR_RETURN(const Party party, Among(list, kAcross));
    return FlatReduce(party, count, input, output, reducer, chunk_);
  }
  const Layer layer = LayerOf(hierarchy_, level, list, party_.rank());
  if (layer.IsTrivial()) {
    return ReduceAt(list, level + 1, count, input, output, reducer);
  }
  TESSERA_ASSIGN_OR_RETURN(const Party group, Among(layer.mine(), kWithin));
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
    TESSERA_ASSIGN_OR_RETURN(const Party party, Among(list, kAcross));
    return FlatBroadcast(party, count, data, chunk_);
  }
  const Layer layer = LayerOf(hierarchy_, level, list, party_.rank());
  if (layer.IsTrivial()) return BroadcastAt(list, level + 1, count, data);
  if (layer.place == 0) {
    TESSERA_RETURN_IF_ERROR(
        BroadcastAt(layer.Leaders(), level + 1, count, data));
  }
  TESSERA_ASSIGN_OR_RETURN(const Party group, Among(layer.mine(), kWithin));
  return FlatBroadcast(group, count, data, chunk_);
}

}  // namespace tessera::collectives
