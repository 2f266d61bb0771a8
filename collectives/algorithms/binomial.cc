#include "collectives/algorithms/binomial.h"

#include <algorithm>
#include <array>

#include "base/status_macros.h"
#include "collectives/algorithms/tree_place.h"
#include "collectives/reduction/copy.h"

namespace tessera::collectives {
namespace {

// This rank's subtree: numbers [first, end), counted from the root on. Its
// blocks lie one after another, but around the end of the group's.
struct Subtree {
  int64_t first = 0;
  int64_t end = 0;
};

// Of `rank`, whose parent is rank without its lowest bit.
Subtree SubtreeOf(int64_t ranks, int64_t rank) {
  const int64_t width = rank == 0 ? ranks : (rank & -rank);
  return {rank, std::min(ranks, rank + width)};
}

class Tree {
 public:
  Tree(const Party& group, int64_t root, const Blocks& blocks)
      : party(group.From(root)),
        place(BinomialPlace(party.size(), party.rank())),
        mine(SubtreeOf(party.size(), party.rank())),
        blocks_(blocks),
        root_(root) {}

  // Elements in the blocks of numbers [first, end).
  int64_t Count(Subtree range) const {
    return Position(range.end) - Position(range.first);
  }
  // Where a number's block begins, counted from the root's on.
  int64_t Position(int64_t number) const {
    const int64_t n = blocks_.ranks();
    const int64_t start = blocks_.offset(root_);
    if (root_ + number <= n) return blocks_.offset(root_ + number) - start;
    return blocks_.total() - start + blocks_.offset(root_ + number - n);
  }
  // Elements of a range that lie before the end of the group's blocks.
  int64_t Head(Subtree range) const {
    const int64_t to_end = blocks_.total() - blocks_.offset(root_);
    return std::clamp<int64_t>(to_end - Position(range.first), 0, Count(range));
  }
  // Where a range begins in the order of the group.
  int64_t Offset(Subtree range) const {
    const int64_t offset = blocks_.offset(root_) + Position(range.first);
    return offset < blocks_.total() ? offset : offset - blocks_.total();
  }

  Party party;
  TreePlace place;
  Subtree mine;

 private:
  const Blocks& blocks_;
  int64_t root_;
};

// Memory for the blocks of a range of the root's children that are not together
// in `all`.
absl::StatusOr<VectorView> Park(Tree& tree, Subtree range, int64_t element) {
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                           tree.party.Scratch(tree.Count(range) * element));
  return VectorView(memory.data(), element);
}

// The one range of the root's children that runs around the end.
struct Around {
  Subtree range;
  VectorView parked;
};

absl::Status GatherAtRoot(Tree& tree, VectorView all,
                          std::span<Request> requests) {
  Around around;
  for (int64_t c = 0; c < tree.place.child_count; ++c) {
    const int64_t child = tree.place.children()[static_cast<size_t>(c)];
    const Subtree range = SubtreeOf(tree.party.size(), child);
    const int64_t count = tree.Count(range);
    VectorView landing = all.From(tree.Offset(range));
    if (const int64_t head = tree.Head(range); head > 0 && head < count) {
      TESSERA_ASSIGN_OR_RETURN(landing, Park(tree, range, all.element));
      around = {range, landing};
    }
    TESSERA_ASSIGN_OR_RETURN(
        requests[static_cast<size_t>(c)],
        tree.party.Receive(child, landing.Range(0, count)));
  }
  TESSERA_RETURN_IF_ERROR(tree.party.Finish(requests));
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
    const Subtree range = SubtreeOf(tree.party.size(), child);
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
                             tree.party.Send(child, from.Range(0, count)));
  }
  return tree.party.Finish(requests);
}

std::span<Request> OfChildren(std::span<Request> requests, const Tree& tree) {
  return requests.first(static_cast<size_t>(tree.place.child_count));
}

}  // namespace

absl::Status BinomialGather(const Party& group, int64_t root,
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
    return tree.party.SendNow(tree.place.parent, own.Range(0, mine));
  }
  TESSERA_ASSIGN_OR_RETURN(const VectorView held,
                           Park(tree, tree.mine, own.element));
  const int64_t start = tree.Position(tree.mine.first);
  for (int64_t c = 0; c < tree.place.child_count; ++c) {
    const int64_t child = tree.place.children()[static_cast<size_t>(c)];
    const Subtree range = SubtreeOf(tree.party.size(), child);
    TESSERA_ASSIGN_OR_RETURN(
        requests[static_cast<size_t>(c)],
        tree.party.Receive(child, held.Range(tree.Position(child) - start,
                                             tree.Count(range))));
  }
  CopyBytes(held.data, own.data, mine * own.element);
  TESSERA_RETURN_IF_ERROR(tree.party.Finish(requests));
  return tree.party.SendNow(tree.place.parent,
                            held.Range(0, tree.Count(tree.mine)));
}

absl::Status BinomialScatter(const Party& group, int64_t root,
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
    return tree.party.ReceiveNow(tree.place.parent, own.Range(0, mine));
  }
  TESSERA_ASSIGN_OR_RETURN(const VectorView held,
                           Park(tree, tree.mine, own.element));
  TESSERA_RETURN_IF_ERROR(tree.party.ReceiveNow(
      tree.place.parent, held.Range(0, tree.Count(tree.mine))));
  const int64_t start = tree.Position(tree.mine.first);
  for (int64_t c = 0; c < tree.place.child_count; ++c) {
    const int64_t child = tree.place.children()[static_cast<size_t>(c)];
    const Subtree range = SubtreeOf(tree.party.size(), child);
    TESSERA_ASSIGN_OR_RETURN(
        requests[static_cast<size_t>(c)],
        tree.party.Send(child, held.Range(tree.Position(child) - start,
                                          tree.Count(range))));
  }
  CopyBytes(own.data, held.data, mine * own.element);
  return tree.party.Finish(requests);
}

}  // namespace tessera::collectives
