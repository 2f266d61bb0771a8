// TreePlace: where a rank stands in a tree: its parent, its children and how
// deep it is. Pure arithmetic, O(log ranks) for one rank.
//
//   const TreePlace place = RootedDoubleTree(8, rank, 0);
//
// The double binary tree is two binary trees over the same ranks such that
// every rank is a leaf in one of them: when each tree carries half of a
// message, every rank sends and receives it about once, and no bandwidth is
// lost to leaves that only listen. Source: Sanders, Speck, Traeff, "Two-tree
// algorithms for full bandwidth broadcast, reduction and scan", Parallel
// Computing 35(12), 2009.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_TREE_PLACE_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_TREE_PLACE_H_

#include <array>
#include <cstdint>
#include <span>

namespace tessera::collectives {

struct TreePlace {
  int64_t parent = -1;  // -1 at the root.
  int64_t depth = 0;    // Steps from the root.
  int64_t child_count = 0;
  std::array<int64_t, 62> child = {};

  std::span<const int64_t> children() const {
    return {child.data(), static_cast<size_t>(child_count)};
  }
  void Add(int64_t c) { child[static_cast<size_t>(child_count++)] = c; }
};

// The chain 0 - 1 - ... - (ranks - 1), rooted at 0. Height: ranks - 1.
TreePlace ChainPlace(int64_t ranks, int64_t rank);

// The binomial tree rooted at 0: the parent of a rank is the rank without its
// lowest bit; the child with the largest subtree comes first. Height: at most
// CeilLog2(ranks).
TreePlace BinomialPlace(int64_t ranks, int64_t rank);

// The binary search tree over ranks in order in which all with an even number
// are leaves. Height: FloorLog2(ranks).
TreePlace InOrderPlace(int64_t ranks, int64_t rank);

// Tree `which`, 0 or 1, of the double binary tree: the in-order tree, and its
// mirror image where ranks are even in number, else itself with all ranks moved
// on by one. Height: FloorLog2(ranks).
TreePlace DoubleTreePlace(int64_t ranks, int64_t rank, int which);

// The same with rank 0 as the root of both: above the roots of the double
// binary tree of all others. Height: 1 + FloorLog2(ranks - 1).
TreePlace RootedDoubleTree(int64_t ranks, int64_t rank, int which);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_TREE_PLACE_H_
