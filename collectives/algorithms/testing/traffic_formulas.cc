#include "collectives/algorithms/testing/traffic_formulas.h"

#include <algorithm>

#include "collectives/algorithms/schedule.h"

namespace tessera::collectives {
namespace {

// Bytes that virtual rank 0 sends while doubling, and to the rank that folded
// into it.
int64_t DoublingAllGatherBytes(int64_t s, int64_t n) {
  const Fold fold(n);
  int64_t blocks = 0;
  for (int64_t width = 1; width < fold.power(); width *= 2) {
    blocks += width + std::min(width, fold.extra());
  }
  return blocks * (s / n) + (fold.extra() > 0 ? s : 0);
}

int64_t AllReduceBytes(Algorithm algorithm, int64_t s, int64_t n) {
  const Fold fold(n);
  const int64_t folded = fold.extra() > 0 ? s : 0;
  switch (algorithm) {
    case Algorithm::kTree:
      if (TreeKindFor(s, n) == TreeKind::kBinomial) return CeilLog2(n) * s;
      return n == 3 ? s + s / 2 : 2 * s;
    case Algorithm::kChain:
      return n == 2 ? s : 2 * s;
    case Algorithm::kRecursiveDoubling:
      return FloorLog2(n) * s + folded;
    case Algorithm::kHalvingDoubling:
      return 2 * (s - s / fold.power()) + folded;
    default:  // kRing, kPairwise
      return 2 * (s - s / n);
  }
}

int64_t ReduceBytes(Algorithm algorithm, int64_t s, int64_t n) {
  if (algorithm != Algorithm::kHalvingDoubling) return s;
  return s - s / Fold(n).power() + s / 2;
}

int64_t BroadcastBytes(Algorithm algorithm, int64_t s, int64_t n) {
  switch (algorithm) {
    case Algorithm::kTree:
      return TreeKindFor(s, n) == TreeKind::kBinomial ? CeilLog2(n) * s : s;
    case Algorithm::kChain:
      return s;
    default:  // kHalvingDoubling
      return s - s / n + DoublingAllGatherBytes(s, n);
  }
}

// The largest subtree below the root of the binomial tree.
int64_t GatherBytes(Algorithm algorithm, int64_t s, int64_t n) {
  if (algorithm == Algorithm::kPairwise) return s / n;
  const int64_t half = int64_t{1} << (CeilLog2(n) - 1);
  return std::max(n - half, half / 2) * (s / n);
}

int64_t AllToAllBytes(Algorithm algorithm, int64_t s, int64_t n) {
  if (algorithm == Algorithm::kPairwise) return s - s / n;
  int64_t slots = 0;
  for (int64_t k = 0; k < CeilLog2(n); ++k) slots += BruckMovingSlots(n, k);
  return slots * (s / n);
}

}  // namespace

int64_t BytesOnWire(const TrafficQuestion& question) {
  const Algorithm algorithm = question.algorithm;
  const int64_t s = question.bytes;
  const int64_t n = question.ranks;
  if (n == 1) return 0;
  switch (question.kind) {
    case OpKind::kAllReduce:
      return AllReduceBytes(algorithm, s, n);
    case OpKind::kReduce:
      return ReduceBytes(algorithm, s, n);
    case OpKind::kBroadcast:
      return BroadcastBytes(algorithm, s, n);
    case OpKind::kReduceScatter:
      return algorithm == Algorithm::kHalvingDoubling && Fold(n).extra() > 0
                 ? s
                 : s - s / n;
    case OpKind::kAllGather:
      return algorithm == Algorithm::kRecursiveDoubling
                 ? DoublingAllGatherBytes(s, n)
                 : s - s / n;
    case OpKind::kGather:
      return GatherBytes(algorithm, s, n);
    case OpKind::kScatter:
      return s - s / n;
    case OpKind::kAllToAll:
      return AllToAllBytes(algorithm, s, n);
    default:
      return 0;
  }
}

}  // namespace tessera::collectives
