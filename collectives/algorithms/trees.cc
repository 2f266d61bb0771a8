#include "collectives/algorithms/trees.h"

#include <algorithm>
#include <array>

#include "base/status_macros.h"
#include "collectives/algorithms/tree_lane.h"

namespace tessera::collectives {
namespace {

int64_t HeightOf(TreeKind kind, int64_t ranks) {
  switch (kind) {
    case TreeKind::kBinomial:
      return CeilLog2(ranks);
    case TreeKind::kDouble:
      return 1 + FloorLog2(ranks);  // Rooted or not.
    case TreeKind::kChain:
      return ranks - 1;
  }
  return 0;
}

TreePlace PlaceOf(TreeKind kind, const Party& party, int which, bool rooted) {
  switch (kind) {
    case TreeKind::kBinomial:
      return BinomialPlace(party.size(), party.rank());
    case TreeKind::kDouble:
      return rooted ? RootedDoubleTree(party.size(), party.rank(), which)
                    : DoubleTreePlace(party.size(), party.rank(), which);
    case TreeKind::kChain:
      return ChainPlace(party.size(), party.rank());
  }
  return {};
}

// One unit of time: what comes in is taken, what comes next is posted. Posting
// last means that a rank has taken everything of this unit before it waits for
// a buffer to be free, so that no two ranks wait for each other's buffers.
absl::Status RunUnit(Party& party, std::span<TreeLane> lanes, int64_t time) {
  for (TreeLane& lane : lanes) {
    TESSERA_RETURN_IF_ERROR(lane.MoveUp(party, time));
  }
  for (TreeLane& lane : lanes) {
    TESSERA_RETURN_IF_ERROR(lane.MoveDown(party, time));
  }
  for (TreeLane& lane : lanes) {
    TESSERA_RETURN_IF_ERROR(lane.PostDown(party, time + 1));
  }
  for (TreeLane& lane : lanes) {
    TESSERA_RETURN_IF_ERROR(lane.PostUp(party, time + 2));
  }
  return absl::OkStatus();
}

absl::Status RunLanes(Party& party, std::span<TreeLane> lanes,
                      const TreeFlow& flow) {
  int64_t chunks = 0;
  for (TreeLane& lane : lanes) {
    TESSERA_RETURN_IF_ERROR(lane.Prepare(party));
    chunks = std::max(chunks, lane.chunk_count());
  }
  const int64_t end =
      chunks + (flow.up && flow.down ? 2 * flow.height : flow.height);
  for (int64_t time = -2; time < end; ++time) {
    party.Step(std::max<int64_t>(1, time + 1), end);
    TESSERA_RETURN_IF_ERROR(RunUnit(party, lanes, time));
  }
  for (TreeLane& lane : lanes) TESSERA_RETURN_IF_ERROR(lane.Finish(party));
  return absl::OkStatus();
}

absl::Status RunTrees(Party& party, const TreeTask& task, bool up, bool down) {
  const TreeFlow flow = {up, down, HeightOf(task.kind, party.size())};
  const bool rooted = !(up && down);
  const auto lane = [&](int which, int64_t first, int64_t count) {
    return TreeLane(task, flow, PlaceOf(task.kind, party, which, rooted), first,
                    count);
  };
  if (task.kind != TreeKind::kDouble) {
    std::array<TreeLane, 1> one = {lane(0, 0, task.count)};
    return RunLanes(party, one, flow);
  }
  const int64_t half = (task.count + 1) / 2;
  std::array<TreeLane, 2> two = {lane(0, 0, half),
                                 lane(1, half, task.count - half)};
  return RunLanes(party, two, flow);
}

}  // namespace

absl::Status TreeBroadcast(Party party, const TreeTask& task) {
  if (party.size() > 1) {
    TESSERA_RETURN_IF_ERROR(RunTrees(party, task, false, true));
  }
  if (party.rank() == 0 && task.output.data != task.input.data) {
    party.Enter(Phase::kCopying);
    CopyBytes(task.output.data, task.input.data,
              task.count * task.output.element);
  }
  return absl::OkStatus();
}

absl::Status TreeReduce(Party party, const TreeTask& task) {
  if (party.size() > 1) return RunTrees(party, task, true, false);
  CombineOne(task.reducer.last, task.input.data, task.output.data, task.count);
  return absl::OkStatus();
}

absl::Status TreeAllReduce(Party party, const TreeTask& task) {
  if (party.size() > 1) return RunTrees(party, task, true, true);
  CombineOne(task.reducer.last, task.input.data, task.output.data, task.count);
  return absl::OkStatus();
}

}  // namespace tessera::collectives
