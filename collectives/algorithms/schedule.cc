#include "collectives/algorithms/schedule.h"

namespace tessera::collectives {

namespace {

constexpr int64_t LowestBit(int64_t x) { return x & -x; }

// In-order trees with labels from 1: the children of a label with lowest bit b
// are the labels b/2 below and above it, in the tree of all labels below a
// power of two. Labels beyond the last rank are skipped; their subtrees move
// up.
int64_t ParentLabel(int64_t label, int64_t last) {
  do {
    const int64_t bit = LowestBit(label);
    label = (label & 2 * bit) != 0 ? label - bit : label + bit;
  } while (label > last);
  return label;
}

// Returns 0 if there is none.
int64_t RightChildLabel(int64_t label, int64_t last) {
  int64_t bit = LowestBit(label) / 2;
  while (bit > 0 && label + bit > last) bit /= 2;
  return bit > 0 ? label + bit : 0;
}

int64_t LabelOfDoubleTree(int64_t ranks, int64_t rank, int which) {
  if (which == 0) return rank + 1;
  if (ranks % 2 == 0) return ranks - rank;
  return rank == 0 ? ranks : rank;
}

int64_t RankOfDoubleTree(int64_t ranks, int64_t label, int which) {
  if (which == 0) return label - 1;
  if (ranks % 2 == 0) return ranks - label;
  return label % ranks;
}

}  // namespace

TreePlace ChainPlace(int64_t ranks, int64_t rank) {
  TreePlace place;
  place.parent = rank - 1;
  place.depth = rank;
  if (rank + 1 < ranks) place.Add(rank + 1);
  return place;
}

TreePlace BinomialPlace(int64_t ranks, int64_t rank) {
  TreePlace place;
  const int64_t lowest =
      rank == 0 ? int64_t{1} << CeilLog2(ranks) : LowestBit(rank);
  if (rank != 0) place.parent = rank - lowest;
  for (int64_t bits = rank; bits != 0; bits &= bits - 1) ++place.depth;
  for (int64_t bit = lowest / 2; bit > 0; bit /= 2) {
    if (rank + bit < ranks) place.Add(rank + bit);
  }
  return place;
}

TreePlace DoubleTreePlace(int64_t ranks, int64_t rank, int which) {
  TreePlace place;
  const int64_t root = int64_t{1} << FloorLog2(ranks);
  const int64_t label = LabelOfDoubleTree(ranks, rank, which);
  for (int64_t at = label; at != root; ++place.depth) {
    at = ParentLabel(at, ranks);
    if (place.depth == 0) place.parent = RankOfDoubleTree(ranks, at, which);
  }
  if (const int64_t half = LowestBit(label) / 2; half > 0) {
    place.Add(RankOfDoubleTree(ranks, label - half, which));
  }
  if (const int64_t right = RightChildLabel(label, ranks); right > 0) {
    place.Add(RankOfDoubleTree(ranks, right, which));
  }
  return place;
}

TreePlace RootedDoubleTree(int64_t ranks, int64_t rank, int which) {
  TreePlace place;
  if (ranks == 1) return place;
  const int64_t others = ranks - 1;
  if (rank == 0) {
    const int64_t top = int64_t{1} << FloorLog2(others);
    place.Add(RankOfDoubleTree(others, top, which) + 1);
    return place;
  }
  place = DoubleTreePlace(others, rank - 1, which);
  ++place.parent;  // Changes -1 to 0 at the root of the tree.
  ++place.depth;
  for (int64_t c = 0; c < place.child_count; ++c) {
    ++place.child[static_cast<size_t>(c)];
  }
  return place;
}

}  // namespace tessera::collectives
