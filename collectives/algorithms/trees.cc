#include "collectives/algorithms/trees.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "collectives/algorithms/rank_group.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/operation/blocks.h"
#include "collectives/reduction/copy.h"

namespace tessera::collectives {
namespace {

// Directions of a tree operation and their timing.
struct TreeFlow {
  bool up = false;    // Partial results, from time 0.
  bool down = false;  // Results.
  int64_t height = 0;

  int64_t UpTime(int64_t depth) const { return height - depth; }
  int64_t DownTime(int64_t depth) const { return (up ? height : 0) + depth; }
};

// One rank's messages in one tree.
class TreeLane {
 public:
  // Handles elements [first, first + count) of the task's vectors.
  TreeLane(const TreeTask& task, const TreeFlow& flow, const TreePlace& place,
           int64_t first, int64_t count);

  absl::Status Prepare(RankGroup& group);
  int64_t chunk_count() const { return chunks_.count(); }

  // Posts the receives that complete at `time`.
  absl::Status PostUp(RankGroup& group, int64_t time);
  absl::Status PostDown(RankGroup& group, int64_t time);
  // Receives, reduces and forwards.
  absl::Status MoveUp(RankGroup& group, int64_t time);
  absl::Status MoveDown(RankGroup& group, int64_t time);

  absl::Status Finish(RankGroup& group);

 private:
  // Slots for chunks on their way up: one is received, one reduced, one sent.
  static constexpr int64_t kSlots = 3;

  bool is_root() const { return place_.parent < 0; }
  int64_t children() const { return place_.child_count; }
  bool Has(int64_t k) const { return k >= 0 && k < chunks_.count(); }
  VectorView Landing(int64_t child, int64_t k) const {
    return slots_.From(((k % kSlots) * children() + child) * chunks_.longest());
  }
  std::span<Request> OfChunk(std::span<Request> requests, int64_t set) const {
    const auto width = static_cast<size_t>(children());
    return requests.subspan(static_cast<size_t>(set) * width, width);
  }
  void CombineChunk(int64_t k, std::byte* result);

  TreeFlow flow_;
  TreePlace place_;
  Chunks chunks_;
  Reducer reducer_;
  ConstVectorView input_;
  VectorView output_;
  ConstVectorView source_;  // Source of the data passed down.
  VectorView slots_;
  std::span<const void*> sources_;
  std::span<Request> from_children_;  // One set per slot.
  std::span<Request> to_children_;    // Two sets.
  Request to_parent_[kSlots];
  Request from_parent_[2];
  int64_t sent_up_ = 0;  // Chunks.
};

// This rank's subtree: ranks [first, end), counted from the root. Its blocks
// are contiguous except where they wrap around the end of the group.
struct Subtree {
  int64_t first = 0;
  int64_t end = 0;
};

// The subtree of `rank`, whose parent is `rank` without its lowest bit.
Subtree SubtreeOf(int64_t ranks, int64_t rank) {
  const int64_t width = rank == 0 ? ranks : (rank & -rank);
  return {rank, std::min(ranks, rank + width)};
}

class Tree {
 public:
  Tree(const RankGroup& unrooted, int64_t root, const Blocks& blocks)
      : group(unrooted.From(root)),
        place(BinomialPlace(group.size(), group.rank())),
        mine(SubtreeOf(group.size(), group.rank())),
        blocks_(blocks),
        root_(root) {}

  // Number of elements in the blocks of ranks [first, end).
  int64_t Count(Subtree range) const {
    return Position(range.end) - Position(range.first);
  }
  // Offset of a rank's block, counted from the root's block.
  int64_t Position(int64_t number) const {
    const int64_t n = blocks_.ranks();
    const int64_t start = blocks_.offset(root_);
    if (root_ + number <= n) return blocks_.offset(root_ + number) - start;
    return blocks_.total() - start + blocks_.offset(root_ + number - n);
  }
  // Number of elements of a range before the end of the group's blocks.
  int64_t Head(Subtree range) const {
    const int64_t to_end = blocks_.total() - blocks_.offset(root_);
    return std::clamp<int64_t>(to_end - Position(range.first), 0, Count(range));
  }
  // Offset of a range in group order.
  int64_t Offset(Subtree range) const {
    const int64_t offset = blocks_.offset(root_) + Position(range.first);
    return offset < blocks_.total() ? offset : offset - blocks_.total();
  }

  RankGroup group;
  TreePlace place;
  Subtree mine;

 private:
  const Blocks& blocks_;
  int64_t root_;
};

// Scratch memory for a range of blocks that is not contiguous in `all`.
absl::StatusOr<VectorView> Park(Tree& tree, Subtree range, int64_t element) {
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                           tree.group.Scratch(tree.Count(range) * element));
  return VectorView(memory.data(), element);
}

// The range of the root's children that wraps around the end, if any.
struct Around {
  Subtree range;
  VectorView parked;
};

absl::Status GatherAtRoot(Tree& tree, VectorView all,
                          std::span<Request> requests) {
  Around around;
  for (int64_t c = 0; c < tree.place.child_count; ++c) {
    const int64_t child = tree.place.children()[static_cast<size_t>(c)];
    const Subtree range = SubtreeOf(tree.group.size(), child);
    const int64_t count = tree.Count(range);
    VectorView landing = all.From(tree.Offset(range));
    if (const int64_t head = tree.Head(range); head > 0 && head < count) {
      TESSERA_ASSIGN_OR_RETURN(landing, Park(tree, range, all.element));
      around = {range, landing};
    }
    TESSERA_ASSIGN_OR_RETURN(
        requests[static_cast<size_t>(c)],
        tree.group.Receive(child, landing.Range(0, count)));
  }
  TESSERA_RETURN_IF_ERROR(tree.group.Finish(requests));
  if (around.parked.data == nullptr) return absl::OkStatus();
  const int64_t head = tree.Head(around.range);
  CopyBytes(all.at(tree.Offset(around.range)), around.parked.data,
            head * all.element);
  CopyBytes(all.data, around.parked.at(head),
            (tree.Count(around.range) - head) * all.element);
  return absl::OkStatus();
}

absl::Status ScatterAtRoot(Tree& tree, ConstVectorView all,
                           std::span<Request> requests) {
  for (int64_t c = 0; c < tree.place.child_count; ++c) {
    const int64_t child = tree.place.children()[static_cast<size_t>(c)];
    const Subtree range = SubtreeOf(tree.group.size(), child);
    const int64_t count = tree.Count(range);
    ConstVectorView from = all.From(tree.Offset(range));
    if (const int64_t head = tree.Head(range); head > 0 && head < count) {
      TESSERA_ASSIGN_OR_RETURN(const VectorView parked,
                               Park(tree, range, all.element));
      CopyBytes(parked.data, from.data, head * all.element);
      CopyBytes(parked.at(head), all.data, (count - head) * all.element);
      from = parked;
    }
    TESSERA_ASSIGN_OR_RETURN(requests[static_cast<size_t>(c)],
                             tree.group.Send(child, from.Range(0, count)));
  }
  return tree.group.Finish(requests);
}

std::span<Request> OfChildren(std::span<Request> requests, const Tree& tree) {
  return requests.first(static_cast<size_t>(tree.place.child_count));
}

TreeLane::TreeLane(const TreeTask& task, const TreeFlow& flow,
                   const TreePlace& place, int64_t first, int64_t count)
    : flow_(flow),
      place_(place),
      chunks_(count, task.chunk),
      reducer_(task.reducer),
      input_(task.input.From(first)),
      output_(task.output.From(first)),
      source_(is_root() && !flow.up ? input_ : ConstVectorView(output_)) {}

absl::Status TreeLane::Prepare(RankGroup& group) {
  TESSERA_ASSIGN_OR_RETURN(to_children_,
                           group.ScratchOf<Request>(2 * children()));
  if (!flow_.up) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(from_children_,
                           group.ScratchOf<Request>(kSlots * children()));
  TESSERA_ASSIGN_OR_RETURN(sources_,
                           group.ScratchOf<const void*>(children() + 1));
  const int64_t slots = children() * std::min(kSlots, chunks_.count());
  TESSERA_ASSIGN_OR_RETURN(
      const std::span<std::byte> memory,
      group.Scratch(slots * chunks_.longest() * reducer_.element()));
  slots_ = {memory.data(), reducer_.element()};
  return absl::OkStatus();
}

absl::Status TreeLane::PostUp(RankGroup& group, int64_t time) {
  const int64_t k = time - flow_.UpTime(place_.depth);
  if (!flow_.up || !Has(k) || children() == 0) return absl::OkStatus();
  // The slot held chunk k - kSlots until it was sent to the parent.
  TESSERA_RETURN_IF_ERROR(group.Finish(to_parent_[k % kSlots]));
  const std::span<Request> receives = OfChunk(from_children_, k % kSlots);
  for (int64_t c = 0; c < children(); ++c) {
    TESSERA_ASSIGN_OR_RETURN(
        receives[static_cast<size_t>(c)],
        group.Receive(place_.children()[static_cast<size_t>(c)],
                      Landing(c, k).Range(0, chunks_.length(k))));
  }
  return absl::OkStatus();
}

absl::Status TreeLane::PostDown(RankGroup& group, int64_t time) {
  const int64_t k = time - flow_.DownTime(place_.depth);
  if (!flow_.down || !Has(k) || is_root()) return absl::OkStatus();
  // In place, the chunk from the parent overwrites the chunk that was sent up.
  if (k >= sent_up_ - kSlots) {
    TESSERA_RETURN_IF_ERROR(group.Finish(to_parent_[k % kSlots]));
  }
  TESSERA_ASSIGN_OR_RETURN(
      from_parent_[k % 2],
      group.Receive(place_.parent,
                    output_.Range(chunks_.first(k), chunks_.length(k))));
  return absl::OkStatus();
}

void TreeLane::CombineChunk(int64_t k, std::byte* result) {
  sources_[0] = input_.at(chunks_.first(k));
  for (int64_t c = 0; c < children(); ++c) {
    sources_[static_cast<size_t>(c + 1)] = Landing(c, k).data;
  }
  void* const destinations[] = {result};
  Combine(reducer_.At(is_root()), sources_, destinations, chunks_.length(k));
}

absl::Status TreeLane::MoveUp(RankGroup& group, int64_t time) {
  const int64_t k = time - flow_.UpTime(place_.depth);
  if (!flow_.up || !Has(k)) return absl::OkStatus();
  const std::byte* result = input_.at(chunks_.first(k));
  if (children() > 0) {
    TESSERA_RETURN_IF_ERROR(group.Finish(OfChunk(from_children_, k % kSlots)));
    group.Enter(Phase::kReducing);
    std::byte* const combined =
        is_root() ? output_.at(chunks_.first(k)) : Landing(0, k).data;
    if (chunks_.length(k) > 0) CombineChunk(k, combined);
    result = combined;
  }
  if (is_root()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(group.Finish(to_parent_[k % kSlots]));
  TESSERA_ASSIGN_OR_RETURN(
      to_parent_[k % kSlots],
      group.Send(place_.parent, ConstVectorView(result, reducer_.element())
                                    .Range(0, chunks_.length(k))));
  sent_up_ = k + 1;
  return absl::OkStatus();
}

absl::Status TreeLane::MoveDown(RankGroup& group, int64_t time) {
  const int64_t k = time - flow_.DownTime(place_.depth);
  if (!flow_.down || !Has(k)) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(group.Finish(from_parent_[k % 2]));
  const std::span<Request> sends = OfChunk(to_children_, k % 2);
  TESSERA_RETURN_IF_ERROR(group.Finish(sends));
  for (int64_t c = 0; c < children(); ++c) {
    TESSERA_ASSIGN_OR_RETURN(
        sends[static_cast<size_t>(c)],
        group.Send(place_.children()[static_cast<size_t>(c)],
                   source_.Range(chunks_.first(k), chunks_.length(k))));
  }
  return absl::OkStatus();
}

absl::Status TreeLane::Finish(RankGroup& group) {
  TESSERA_RETURN_IF_ERROR(group.Finish(to_parent_));
  return group.Finish(to_children_);
}

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

TreePlace PlaceOf(TreeKind kind, const RankGroup& group, int which,
                  bool rooted) {
  switch (kind) {
    case TreeKind::kBinomial:
      return BinomialPlace(group.size(), group.rank());
    case TreeKind::kDouble:
      return rooted ? RootedDoubleTree(group.size(), group.rank(), which)
                    : DoubleTreePlace(group.size(), group.rank(), which);
    case TreeKind::kChain:
      return ChainPlace(group.size(), group.rank());
  }
  return {};
}

// One time unit: receives what arrives, then posts the next receives. Because
// it posts last, a rank has received everything of this unit before it waits
// for a free buffer, so no two ranks wait for each other's buffers.
absl::Status RunUnit(RankGroup& group, std::span<TreeLane> lanes,
                     int64_t time) {
  for (TreeLane& lane : lanes) {
    TESSERA_RETURN_IF_ERROR(lane.MoveUp(group, time));
  }
  for (TreeLane& lane : lanes) {
    TESSERA_RETURN_IF_ERROR(lane.MoveDown(group, time));
  }
  for (TreeLane& lane : lanes) {
    TESSERA_RETURN_IF_ERROR(lane.PostDown(group, time + 1));
  }
  for (TreeLane& lane : lanes) {
    TESSERA_RETURN_IF_ERROR(lane.PostUp(group, time + 2));
  }
  return absl::OkStatus();
}

absl::Status RunLanes(RankGroup& group, std::span<TreeLane> lanes,
                      const TreeFlow& flow) {
  int64_t chunks = 0;
  for (TreeLane& lane : lanes) {
    TESSERA_RETURN_IF_ERROR(lane.Prepare(group));
    chunks = std::max(chunks, lane.chunk_count());
  }
  const int64_t end =
      chunks + (flow.up && flow.down ? 2 * flow.height : flow.height);
  for (int64_t time = -2; time < end; ++time) {
    group.Step(std::max<int64_t>(1, time + 1), end);
    TESSERA_RETURN_IF_ERROR(RunUnit(group, lanes, time));
  }
  for (TreeLane& lane : lanes) TESSERA_RETURN_IF_ERROR(lane.Finish(group));
  return absl::OkStatus();
}

absl::Status RunTrees(RankGroup& group, const TreeTask& task, bool up,
                      bool down) {
  const TreeFlow flow = {up, down, HeightOf(task.kind, group.size())};
  const bool rooted = !(up && down);
  const auto lane = [&](int which, int64_t first, int64_t count) {
    return TreeLane(task, flow, PlaceOf(task.kind, group, which, rooted), first,
                    count);
  };
  if (task.kind != TreeKind::kDouble) {
    std::array<TreeLane, 1> one = {lane(0, 0, task.count)};
    return RunLanes(group, one, flow);
  }
  const int64_t half = (task.count + 1) / 2;
  std::array<TreeLane, 2> two = {lane(0, 0, half),
                                 lane(1, half, task.count - half)};
  return RunLanes(group, two, flow);
}

}  // namespace

absl::Status BinomialGather(const RankGroup& group, int64_t root,
                            const Blocks& blocks, ConstVectorView own,
                            VectorView all) {
  Tree tree(group, root, blocks);
  const int64_t mine = blocks.count(group.rank());
  std::array<Request, 62> memory = {};
  const std::span<Request> requests = OfChildren(memory, tree);
  if (tree.place.parent < 0) {
    std::byte* const place = all.at(blocks.offset(root));
    if (own.data != place) CopyBytes(place, own.data, mine * own.element);
    return GatherAtRoot(tree, all, requests);
  }
  if (tree.place.child_count == 0) {
    return tree.group.SendNow(tree.place.parent, own.Range(0, mine));
  }
  TESSERA_ASSIGN_OR_RETURN(const VectorView held,
                           Park(tree, tree.mine, own.element));
  const int64_t start = tree.Position(tree.mine.first);
  for (int64_t c = 0; c < tree.place.child_count; ++c) {
    const int64_t child = tree.place.children()[static_cast<size_t>(c)];
    const Subtree range = SubtreeOf(tree.group.size(), child);
    TESSERA_ASSIGN_OR_RETURN(
        requests[static_cast<size_t>(c)],
        tree.group.Receive(child, held.Range(tree.Position(child) - start,
                                             tree.Count(range))));
  }
  CopyBytes(held.data, own.data, mine * own.element);
  TESSERA_RETURN_IF_ERROR(tree.group.Finish(requests));
  return tree.group.SendNow(tree.place.parent,
                            held.Range(0, tree.Count(tree.mine)));
}

absl::Status BinomialScatter(const RankGroup& group, int64_t root,
                             const Blocks& blocks, ConstVectorView all,
                             VectorView own) {
  Tree tree(group, root, blocks);
  const int64_t mine = blocks.count(group.rank());
  std::array<Request, 62> memory = {};
  const std::span<Request> requests = OfChildren(memory, tree);
  if (tree.place.parent < 0) {
    const std::byte* const place = all.at(blocks.offset(root));
    if (own.data != place) CopyBytes(own.data, place, mine * own.element);
    return ScatterAtRoot(tree, all, requests);
  }
  if (tree.place.child_count == 0) {
    return tree.group.ReceiveNow(tree.place.parent, own.Range(0, mine));
  }
  TESSERA_ASSIGN_OR_RETURN(const VectorView held,
                           Park(tree, tree.mine, own.element));
  TESSERA_RETURN_IF_ERROR(tree.group.ReceiveNow(
      tree.place.parent, held.Range(0, tree.Count(tree.mine))));
  const int64_t start = tree.Position(tree.mine.first);
  for (int64_t c = 0; c < tree.place.child_count; ++c) {
    const int64_t child = tree.place.children()[static_cast<size_t>(c)];
    const Subtree range = SubtreeOf(tree.group.size(), child);
    TESSERA_ASSIGN_OR_RETURN(
        requests[static_cast<size_t>(c)],
        tree.group.Send(child, held.Range(tree.Position(child) - start,
                                          tree.Count(range))));
  }
  CopyBytes(own.data, held.data, mine * own.element);
  return tree.group.Finish(requests);
}

absl::Status TreeBroadcast(RankGroup group, const TreeTask& task) {
  if (group.size() > 1) {
    TESSERA_RETURN_IF_ERROR(RunTrees(group, task, false, true));
  }
  if (group.rank() == 0 && task.output.data != task.input.data) {
    group.Enter(Phase::kCopying);
    CopyBytes(task.output.data, task.input.data,
              task.count * task.output.element);
  }
  return absl::OkStatus();
}

absl::Status TreeReduce(RankGroup group, const TreeTask& task) {
  if (group.size() > 1) return RunTrees(group, task, true, false);
  CombineOne(task.reducer.last, task.input.data, task.output.data, task.count);
  return absl::OkStatus();
}

absl::Status TreeAllReduce(RankGroup group, const TreeTask& task) {
  if (group.size() > 1) return RunTrees(group, task, true, true);
  CombineOne(task.reducer.last, task.input.data, task.output.data, task.count);
  return absl::OkStatus();
}

}  // namespace tessera::collectives
